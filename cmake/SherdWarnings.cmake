# SPDX-License-Identifier: Apache-2.0
# Warnings are errors in our code, but not in the build of pip, which compilers do that nobody has tried; a chosen sanitizer goes into every target.
# (CMake 3.25 knows no CUDA20, so the flag stands here.)
function(sherd_strict target)
  if(SHERD_PACKAGE_ONLY)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
    return()
  endif()
  target_compile_options(
    ${target}
    PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Werror>
            $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Xcompiler=-Wall,-Wextra,-Werror;-Werror=all-warnings>)
endfunction()

if(SHERD_SANITIZE)
  if(NOT SHERD_SANITIZE MATCHES "^(address|undefined|thread)$")
    message(FATAL_ERROR "SHERD_SANITIZE is '${SHERD_SANITIZE}': one of address, undefined, thread")
  endif()
  # With a sanitizer's code in between, g++ takes members of torch's optionals for uninitialised.
  add_compile_options(-fsanitize=${SHERD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
                      $<$<COMPILE_LANGUAGE:CXX>:-Wno-error=maybe-uninitialized>)
  add_link_options(-fsanitize=${SHERD_SANITIZE})
endif()
