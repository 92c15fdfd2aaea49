# The Rust archive: tokenizers, chat templates, YAML and plots behind one small C interface (rust/include/longspan_rs.h).
find_program(CARGO cargo HINTS $ENV{HOME}/.cargo/bin REQUIRED)
set(RUST_TARGET_DIR ${CMAKE_CURRENT_BINARY_DIR}/rust CACHE PATH "cargo's target folder")
set(RUST_ARCHIVE ${RUST_TARGET_DIR}/release/liblongspan_rs.a)
file(GLOB_RECURSE RUST_SOURCES CONFIGURE_DEPENDS rust/src/*)
add_custom_command(
  OUTPUT ${RUST_ARCHIVE}
  COMMAND ${CARGO} build --release --locked --quiet --manifest-path ${CMAKE_CURRENT_SOURCE_DIR}/rust/Cargo.toml --target-dir ${RUST_TARGET_DIR}
  DEPENDS ${RUST_SOURCES} rust/Cargo.toml rust/Cargo.lock
  COMMENT "Building the Rust archive (about 80 s the first time)" USES_TERMINAL VERBATIM)
add_custom_target(longspan_rs_archive DEPENDS ${RUST_ARCHIVE})
add_library(longspan_rs STATIC IMPORTED)
add_dependencies(longspan_rs longspan_rs_archive)
set_target_properties(longspan_rs PROPERTIES
  IMPORTED_LOCATION ${RUST_ARCHIVE}
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR}/rust/include
  INTERFACE_LINK_OPTIONS -Wl,--gc-sections)  # fonts that no picture uses: 13 MB
