# SPDX-License-Identifier: Apache-2.0
# sherd_unity(target): compiles the target's sources of one folder together, SHERD_UNITY files at a time. Most of
# the time that a source file takes is spent in torch's headers, which are then read once for all of them. So
# names in unnamed namespaces must differ within a folder. A file with compile options of its own stays alone.
function(sherd_unity target)
  if(SHERD_UNITY LESS 2)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    if(NOT source MATCHES "\\.(cpp|cu)$")
      continue()
    endif()
    cmake_path(ABSOLUTE_PATH source)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE path)
    string(REGEX REPLACE "^([^/]+)/(([^/]+)/)?.*" "\\1_\\3" group ${path})
    if(source MATCHES "/nccl/")  # ProcessGroupNCCL's header takes longer than all others: for those alone
      string(APPEND group _nccl)
    endif()
    math(EXPR count_${group} "0${count_${group}} + 1")
    math(EXPR batch "(${count_${group}} - 1) / ${SHERD_UNITY}")
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${group}_${batch})
  endforeach()
  # A class that is declared in a header and defined in a source may hold types of that source's own.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
