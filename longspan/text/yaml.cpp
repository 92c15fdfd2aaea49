#include "longspan/text/yaml.h"

#include <utility>

#include "longspan/config/user_error.h"
#include "longspan/text/rust_call.h"

namespace longspan {

namespace {

/// How the reader of YAML begins what it says to its programmers, and what a user is told instead.
constexpr std::pair<std::string_view, std::string_view> kPlainWords[] = {
    {"multiple YAML documents detected",
     "there are several YAML documents in it (a line of --- begins another); keep one"},
    {"!!binary scalar is not valid UTF-8", "what stands behind !!binary is no text; remove it"},
    {"cannot deserialize null into string", "a key is empty; give it a name, or put it in quotes"},
    {"cannot deserialize tagged scalar into string",
     "a word with ! before it is a tag in YAML; remove it, or put the text in quotes"},
    {"alias references unknown anchor",
     "a word with * before it names an anchor, and there is none of that name; put the text in "
     "quotes"},
    {"recursive references require", "an anchor (&) stands within what it names; write it out"},
    {"alias replay", "what is named by anchors (& and *) grows too large; write the values out"},
    {"alias expansion", "what is named by anchors (& and *) grows too large; write the values out"},
    {"budget breached", "more stands in it, or within each other, than in any configuration"},
    {"YAML merge keys are not allowed", "<< is not supported; write the keys out"},
    {"YAML merge value must be", "behind << stands no map of keys; write the keys out"}};

}  // namespace

std::string yaml_to_json(std::string_view yaml, const std::string& file_name) {
  LsrString json{};
  try {
    rust_call(lsr_yaml_to_json, rust_view(yaml), rust_view(file_name), &json);
  } catch (const UserError& error) {
    const std::string said = error.what();
    for (const auto& [words, plain] : kPlainWords) {
      const size_t at = said.find(words);
      if (at != std::string::npos) throw UserError(said.substr(0, at) + std::string(plain));
    }
    throw;
  }
  return take_rust_string(json);
}

}  // namespace longspan
