# SPDX-License-Identifier: Apache-2.0
# sherd::torch: LibTorch as it lies in the PyPI wheel. find_package(Torch) of that wheel fails
# without a CUDA toolkit, so its libraries are declared here, for builds with and without CUDA, and
# for the projects that use an installed Sherd.
# In: SHERD_PREFIX (a virtual environment) or SHERD_TORCH_DIR (the package's folder), SHERD_WITH_CUDA.
include_guard(GLOBAL)
if(NOT SHERD_TORCH_DIR)
  file(GLOB found ${SHERD_PREFIX}/lib/python3*/site-packages/torch/include)
  if(NOT found)
    message(FATAL_ERROR "No torch under ${SHERD_PREFIX}: run ./sherd build, which installs the wheel, "
                        "or set SHERD_TORCH_DIR to the folder of the Python package torch")
  endif()
  list(GET found 0 found)
  get_filename_component(SHERD_TORCH_DIR ${found} DIRECTORY)
endif()
get_filename_component(SHERD_NVIDIA_DIR ${SHERD_TORCH_DIR}/../nvidia ABSOLUTE)

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
                                              ${SHERD_NVIDIA_DIR}/nccl/lib/libnccl.so.2)
  if(TARGET sherd_cuda)  # only where Sherd itself is built: its headers show nothing of CUDA
    # The NCCL that torch uses, before one that the machine may have.
    target_include_directories(sherd_cuda SYSTEM INTERFACE ${SHERD_NVIDIA_DIR}/nccl/include
                                                           ${CUDAToolkit_INCLUDE_DIRS})
  endif()
endif()
foreach(library IN LISTS libraries)
  # --no-as-needed: libtorch_cuda registers its operators when loaded; nothing refers to it by name.
  target_link_libraries(sherd_torch INTERFACE
                        -Wl,--no-as-needed ${SHERD_TORCH_DIR}/lib/lib${library}.so -Wl,--as-needed)
endforeach()
