// `longspan schema`.
#include <fmt/format.h>

#include "cli/commands.h"
#include "longspan/base/user_error.h"
#include "longspan/config/keys.h"
#include "longspan/text/print.h"

namespace longspan {

namespace {

int run_schema(const Arguments& arguments) {
  if (!arguments.empty()) {
    throw UserError(
        fmt::format("schema takes no argument, {} was given; write its output to a "
                    "file: longspan schema > longspan.schema.json",
                    arguments[0]));
  }
  print_data(json_schema());
  return 0;
}

constexpr const char* kSchemaHelp =
    R"(Prints a JSON schema of the configuration file, by which editors complete keys, show what they
mean and underline mistakes.

  longspan schema > longspan.schema.json

VS Code (with Red Hat's YAML extension) and others that use yaml-language-server read it where a
configuration begins with

  # yaml-language-server: $schema=longspan.schema.json
)";

}  // namespace

Command schema_command() {
  return {"schema", "print a JSON schema of the keys, for editors", kSchemaHelp, run_schema,
          /*computes=*/false};
}

}  // namespace longspan
