#include "longspan/text/yaml.h"

#include "longspan/text/rust_call.h"

namespace longspan {

std::string yaml_to_json(std::string_view yaml, const std::string& file_name) {
  LsrString json{};
  rust_call(lsr_yaml_to_json, rust_view(yaml), rust_view(file_name), &json);
  return take_rust_string(json);
}

}  // namespace longspan
