# What a machine that runs Kvasir gets. `cmake --install` puts it into a folder, `cpack` makes a Debian package of it, and
# `./dev package` calls both. The component program is the binary and what describes it; service is how systemd runs it.
install(TARGETS kvasir RUNTIME DESTINATION bin COMPONENT program)
install(CODE "execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/describe_binary.sh $<TARGET_FILE:kvasir>
  \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT program)
install(FILES deploy/debian/copyright DESTINATION share/doc/kvasir COMPONENT program)
install(FILES deploy/systemd/kvasir.service deploy/systemd/kvasir.socket DESTINATION lib/systemd/system COMPONENT service)
install(FILES deploy/kvasir.yaml DESTINATION /etc/kvasir COMPONENT service)
install(DIRECTORY DESTINATION /var/lib/kvasir COMPONENT service)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kvasir)
set(CPACK_PACKAGE_CONTACT "The authors of Kvasir <maintainers@kvasir.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "server of large language models that manages their memory")
set(CPACK_PACKAGE_DESCRIPTION "Serves GGUF files and folders of Hugging Face on CPUs behind the APIs of OpenAI and Anthropic.
The output of a request does not depend on what else is being served, bit for bit.")
set(CPACK_SET_DESTDIR ON) # some destinations are absolute
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};kvasir;program;/;${CMAKE_BINARY_DIR};kvasir;service;/")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates) # traces over HTTPS
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  ${PROJECT_SOURCE_DIR}/deploy/debian/conffiles
  ${PROJECT_SOURCE_DIR}/deploy/debian/postinst
  ${PROJECT_SOURCE_DIR}/deploy/debian/prerm
  ${PROJECT_SOURCE_DIR}/deploy/debian/postrm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
