# SPDX-License-Identifier: Apache-2.0
# What find_package(Sherd) finds: the library, its public headers, and torch as the library saw it. No path of this
# checkout is installed.
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Sherd)
install(TARGETS sherd EXPORT SherdTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS sherd_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES app/import_checkpoint.py app/render_chat.py DESTINATION ${CMAKE_INSTALL_DATADIR}/sherd)
install(DIRECTORY bench/peers DESTINATION ${CMAKE_INSTALL_DATADIR}/sherd FILES_MATCHING PATTERN "*.py")
install(DIRECTORY include/sherd DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT SherdTargets NAMESPACE sherd:: DESTINATION ${package})
configure_package_config_file(cmake/SherdConfig.cmake.in ${CMAKE_BINARY_DIR}/SherdConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/SherdConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/SherdConfig.cmake ${CMAKE_BINARY_DIR}/SherdConfigVersion.cmake
              cmake/SherdTorch.cmake
        DESTINATION ${package})
