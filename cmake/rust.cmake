# The Rust archive: tokenizers, chat templates, YAML, picture decoders and plots behind one small C interface (rust/include/longspan_rs.h).
find_program(CARGO cargo HINTS $ENV{HOME}/.cargo/bin REQUIRED)
set(RUST_TARGET_DIR ${CMAKE_CURRENT_BINARY_DIR}/rust CACHE PATH "cargo's target folder")
set(RUST_ARCHIVE ${RUST_TARGET_DIR}/release/liblongspan_rs.a)
set(RUST_ENVIRONMENT "")
set(RUST_TARGET "")
if(LONGSPAN_FUZZ)
  # libFuzzer counts the branches of Rust code as well. A named target keeps the counters out of build scripts.
  execute_process(COMMAND ${CARGO} -vV OUTPUT_VARIABLE RUST_HOST)
  string(REGEX REPLACE ".*host: ([^\n]+).*" "\\1" RUST_HOST "${RUST_HOST}")
  set(RUST_TARGET --target ${RUST_HOST})
  set(RUST_ARCHIVE ${RUST_TARGET_DIR}/${RUST_HOST}/release/liblongspan_rs.a)
  string(CONCAT RUST_FLAGS "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 "
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table "
    "-Cllvm-args=-sanitizer-coverage-trace-compares")
  set(RUST_ENVIRONMENT ${CMAKE_COMMAND} -E env "RUSTFLAGS=${RUST_FLAGS}")
endif()
# CI's warnings are errors here too: of this crate alone, so that no other is compiled again.
set(RUST_BUILD build)
set(RUST_WARNINGS "")
if(CMAKE_COMPILE_WARNING_AS_ERROR)
  set(RUST_BUILD rustc)
  set(RUST_WARNINGS -- -D warnings)
endif()
file(GLOB_RECURSE RUST_SOURCES CONFIGURE_DEPENDS rust/src/*)
add_custom_command(
  OUTPUT ${RUST_ARCHIVE}
  COMMAND ${RUST_ENVIRONMENT} ${CARGO} ${RUST_BUILD} --release --locked --quiet ${RUST_TARGET}
    --manifest-path ${CMAKE_CURRENT_SOURCE_DIR}/rust/Cargo.toml --target-dir ${RUST_TARGET_DIR} ${RUST_WARNINGS}
  DEPENDS ${RUST_SOURCES} rust/Cargo.toml rust/Cargo.lock
  COMMENT "Building the Rust archive (about 100 s the first time)" USES_TERMINAL VERBATIM)
add_custom_target(longspan_rs_archive DEPENDS ${RUST_ARCHIVE})
add_library(longspan_rs STATIC IMPORTED)
add_dependencies(longspan_rs longspan_rs_archive)
set_target_properties(longspan_rs PROPERTIES
  IMPORTED_LOCATION ${RUST_ARCHIVE}
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR}/rust/include
  INTERFACE_LINK_OPTIONS -Wl,--gc-sections)  # fonts that no picture uses: 13 MB
