# SPDX-License-Identifier: Apache-2.0
# What a wheel has besides the Python files: the library and the extension side by side. They find torch, and what
# torch's wheel brings, in the same environment.
install(TARGETS sherd sherd_python LIBRARY DESTINATION sherd)
install(FILES ${SHERD_PYTHON_DIR}/sherd/built_with.py DESTINATION sherd)
set_target_properties(
  sherd sherd_python
  PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib;$ORIGIN/../nvidia/cu13/lib;$ORIGIN/../nvidia/nccl/lib")
