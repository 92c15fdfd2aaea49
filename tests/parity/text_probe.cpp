// Runs the text services for the Python tests: one JSON request per line on stdin, one JSON answer
// per line on stdout, or {"error": message} for a UserError.
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/text/chat_template.h"
#include "longspan/text/similarity.h"
#include "longspan/text/tokenizer.h"
#include "longspan/text/yaml.h"

using nlohmann::json;

namespace {

longspan::Tokenizer& tokenizer_of(const std::string& folder) {
  static std::map<std::string, longspan::Tokenizer> loaded;
  auto found = loaded.find(folder);
  if (found == loaded.end()) {
    found = loaded.emplace(folder, longspan::Tokenizer::load(folder)).first;
  }
  return found->second;
}

json or_null(const std::optional<std::string>& text) { return text ? json(*text) : json(); }

json answer(const json& request) {
  const std::string what = request.at("do");
  if (what == "tokenizer") {
    const auto& tokenizer = tokenizer_of(request.at("folder"));
    return {{"vocab_size", tokenizer.vocab_size()},
            {"bos_token", or_null(tokenizer.bos_token())},
            {"eos_token", or_null(tokenizer.eos_token())},
            {"pad_token", or_null(tokenizer.pad_token())},
            {"unk_token", or_null(tokenizer.unk_token())},
            {"chat_template", or_null(tokenizer.chat_template())}};
  }
  if (what == "encode") {
    const std::vector<std::string> texts = request.at("texts");
    return {{"ids", tokenizer_of(request.at("folder")).encode_batch(texts, request.at("special"))}};
  }
  if (what == "decode") {
    json texts = json::array();
    for (const std::vector<int32_t> ids : request.at("ids")) {
      texts.push_back(tokenizer_of(request.at("folder")).decode(ids, request.at("skip_special")));
    }
    return {{"texts", texts}};
  }
  if (what == "render") {
    const auto rendered = longspan::render_chat_template(
        request.at("template").get<std::string>(), request.at("variables").get<std::string>());
    json spans = json::array();
    for (const auto& span : rendered.generation) spans.push_back({span.begin, span.end});
    return {{"text", rendered.text}, {"generation", spans}};
  }
  if (what == "yaml") {
    return {{"json", longspan::yaml_to_json(request.at("yaml").get<std::string>(), "test.yaml")}};
  }
  if (what == "similarity") {
    json scores = json::array();
    for (const auto& pair : request.at("pairs")) {
      const longspan::Similarity all =
          longspan::similarity(pair.at(0).get<std::string>(), pair.at(1).get<std::string>());
      scores.push_back({all.rouge_1, all.rouge_2, all.rouge_l, all.bleu_4});
    }
    return {{"scores", scores}};
  }
  longspan::train_byte_level_bpe(request.at("files"), request.at("vocab_size"),
                                 request.at("folder"));
  return json::object();
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    json result;
    try {
      result = answer(json::parse(line));
    } catch (const longspan::UserError& error) {
      result = {{"error", error.what()}};
    }
    std::cout << result.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  }
}
