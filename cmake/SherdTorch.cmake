# SPDX-License-Identifier: Apache-2.0
# sherd::torch: LibTorch as it lies in the PyPI wheel. find_package(Torch) of that wheel fails
# without a CUDA toolkit, so its libraries are declared here, for builds with and without CUDA, and
# for the projects that use an installed Sherd.
# In: SHERD_TORCH_DIR (the folder of the Python package torch); without it torch is looked for in Torch_DIR and
# CMAKE_PREFIX_PATH, as find_package(Torch) does, then in the Python environment SHERD_PREFIX and the active one.
# SHERD_WITH_CUDA; SHERD_TORCH_VERSION, if another version is an error. Out: SHERD_TORCH_DIR, SHERD_NVIDIA_DIR.
# In the build of pip (SKBUILD) it is the torch of that Python, Python_EXECUTABLE.
include_guard(GLOBAL)
if(SKBUILD AND NOT SHERD_TORCH_DIR)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE SHERD_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(NOT SHERD_TORCH_DIR)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no torch: pip install torch (the version in pyproject.toml), or leave "
                        "out --no-build-isolation")
  endif()
endif()
if(NOT SHERD_TORCH_DIR)
  set(environments "")
  foreach(prefix IN ITEMS "${SHERD_PREFIX}" "$ENV{VIRTUAL_ENV}" "$ENV{CONDA_PREFIX}")
    if(prefix)
      file(GLOB packages ${prefix}/lib/python3*/site-packages/torch)
      list(APPEND environments ${packages})
    endif()
  endforeach()
  find_path(SHERD_TORCH_CONFIG TorchConfig.cmake NO_CACHE NO_DEFAULT_PATH
            HINTS ${Torch_DIR} ${CMAKE_PREFIX_PATH} ${environments} PATH_SUFFIXES Torch share/cmake/Torch)
  if(NOT SHERD_TORCH_CONFIG)
    message(FATAL_ERROR "No torch under '${SHERD_PREFIX}', in CMAKE_PREFIX_PATH or in an active Python environment: run "
                        "./sherd build, which installs the wheel, or set SHERD_TORCH_DIR to the folder of the Python "
                        "package torch")
  endif()
  cmake_path(SET SHERD_TORCH_DIR NORMALIZE ${SHERD_TORCH_CONFIG}/../../..)
endif()
cmake_path(SET SHERD_NVIDIA_DIR NORMALIZE ${SHERD_TORCH_DIR}/../nvidia)
file(STRINGS ${SHERD_TORCH_DIR}/version.py torch_version REGEX "^__version__ = ")
string(REGEX REPLACE "^__version__ = '(.*)'" "\\1" torch_version "${torch_version}")
if(SHERD_TORCH_VERSION AND NOT SHERD_TORCH_VERSION STREQUAL torch_version)
  message(FATAL_ERROR "Sherd was built with torch ${SHERD_TORCH_VERSION}, but ${SHERD_TORCH_DIR} is torch ${torch_version}: "
                      "set SHERD_TORCH_DIR to the folder of that version's Python package torch")
endif()
set(SHERD_TORCH_VERSION ${torch_version})

add_library(sherd_torch INTERFACE IMPORTED GLOBAL)
add_library(sherd::torch ALIAS sherd_torch)
target_include_directories(
  sherd_torch SYSTEM INTERFACE ${SHERD_TORCH_DIR}/include
                               ${SHERD_TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(sherd_torch INTERFACE USE_DISTRIBUTED)
set(libraries torch torch_cpu c10)
if(SHERD_WITH_CUDA)
  list(APPEND libraries torch_cuda c10_cuda)
  # Libraries that torch's own need: found there at run time, but the linker wants to see them.
  target_link_options(sherd_torch INTERFACE
                      -Wl,-rpath-link,${SHERD_NVIDIA_DIR}/cu13/lib:${SHERD_NVIDIA_DIR}/nccl/lib)
  target_link_libraries(sherd_torch INTERFACE ${SHERD_NVIDIA_DIR}/cu13/lib/libcudart.so.13
                                              ${SHERD_NVIDIA_DIR}/cu13/lib/libcublasLt.so.13
                                              ${SHERD_NVIDIA_DIR}/nccl/lib/libnccl.so.2)
  if(TARGET sherd_cuda)  # only where Sherd itself is built: its headers show nothing of CUDA
    # The NCCL that torch uses, before one that the machine may have.
    target_include_directories(sherd_cuda SYSTEM INTERFACE ${SHERD_NVIDIA_DIR}/nccl/include
                                                           ${CUDAToolkit_INCLUDE_DIRS})
  endif()
endif()
# --no-as-needed: libtorch_cuda registers its operators when loaded; nothing refers to it by name. And a program
# outside finds for an installed libsherd what that needs, see SherdConfig.cmake.in.
target_link_options(sherd_torch INTERFACE -Wl,--no-as-needed)
foreach(library IN LISTS libraries)
  target_link_libraries(sherd_torch INTERFACE ${SHERD_TORCH_DIR}/lib/lib${library}.so)
endforeach()
