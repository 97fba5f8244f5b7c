# SPDX-License-Identifier: Apache-2.0
# sherd::pcre2: the regular expressions of tokenizers.
find_path(SHERD_PCRE2_INCLUDE pcre2.h REQUIRED)
find_library(SHERD_PCRE2_LIBRARY pcre2-8 REQUIRED)
mark_as_advanced(SHERD_PCRE2_INCLUDE SHERD_PCRE2_LIBRARY)
add_library(sherd_pcre2 INTERFACE)
add_library(sherd::pcre2 ALIAS sherd_pcre2)
target_include_directories(sherd_pcre2 SYSTEM INTERFACE ${SHERD_PCRE2_INCLUDE})
target_link_libraries(sherd_pcre2 INTERFACE ${SHERD_PCRE2_LIBRARY})
