#include "longspan/rollouts/text_completion.h"

#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/input/json_text.h"
#include "longspan/testing/dataset_folder.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

constexpr int64_t kMostTokens = 12;

std::string complaint_of_text(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// A server of texts, and a small tokenizer with chatml's tokens. `adds_bos`: the tokenizer adds
/// <|endoftext|> to the beginning of a text.
class TextServer {
 public:
  explicit TextServer(bool adds_bos = false) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "Question " + std::to_string(i * 37) + " is answered.\n";
    train_byte_level_bpe({folder_.write("text.txt", text)}, 300, folder_ / "tokenizer");
    tokenizer = Tokenizer::load(folder_ / "tokenizer");
    if (adds_bos) add_bos();
    const auto id_of = [&](const char* token) { return tokenizer.id_of(token).value(); };
    bos = id_of("<|endoftext|>"), end = id_of("<|im_end|>");
    rules.emplace(CompletionRules{.kind = server_kind_named("transformers"),
                                  .model = "base",
                                  .adapter = "",
                                  .max_length = kMostTokens,
                                  .temperature = 0.5,
                                  .end_tokens = {bos, end},
                                  .vocab_size = tokenizer.vocab_size(),
                                  .tokenizer = tokenizer,
                                  .end_of_text = end});
  }

  std::vector<int32_t> ids(const std::string& text) const { return tokenizer.encode(text); }
  std::vector<int32_t> ended(const std::string& text) const {
    std::vector<int32_t> all = ids(text);
    all.push_back(end);
    return all;
  }
  nlohmann::json request(const std::vector<int32_t>& prompt) const {
    return nlohmann::json::parse(completion_request(*rules, prompt, 1, 42));
  }
  std::string complaint(const nlohmann::json& body, const std::vector<int32_t>& prompt) const {
    return complaint_of_text(
        [&] { completions_from(body.dump(), *rules, prompt, 1, "URL, prompt 1 of 1"); });
  }

 private:
  void add_bos() {
    const nlohmann::json bos_token = {{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
                         text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                         second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
    nlohmann::json file = parse_json(read(folder_ / "tokenizer/tokenizer.json"), "tokenizer.json");
    file["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", {bos_token, text}},
                              {"pair", {bos_token, text, second}},
                              {"special_tokens",
                               {{"<|endoftext|>",
                                 {{"id", "<|endoftext|>"},
                                  {"ids", {tokenizer.id_of("<|endoftext|>").value()}},
                                  {"tokens", {"<|endoftext|>"}}}}}}};
    folder_.write("tokenizer/tokenizer.json", file.dump());
    tokenizer = Tokenizer::load(folder_ / "tokenizer");
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  testing::TemporaryFolder folder_;

 public:
  Tokenizer tokenizer;
  int32_t bos, end;
  std::optional<CompletionRules> rules;
};

nlohmann::json response_of(const nlohmann::json& text, const std::string& finish, size_t prompt) {
  return {{"choices", {{{"index", 0}, {"text", text}, {"finish_reason", finish}}}},
          {"usage", {{"prompt_tokens", prompt}, {"completion_tokens", 3}}}};
}

const std::string kAsked = "<|im_start|>user\nQuestion 37?<|im_end|>\n<|im_start|>assistant\n";

TEST_CASE("text completion: the request has the prompt as text, and all numbers of sampling") {
  const TextServer server;
  const nlohmann::json request = server.request(server.ids(kAsked));
  CHECK(request["prompt"] == kAsked);
  CHECK(request["model"] == "base");
  CHECK(request["seed"] == 42);
  // The server refuses unknown fields, and ignores these.
  for (const char* key : {"n", "logprobs", "max_tokens", "temperature"}) {
    CHECK_FALSE(request.contains(key));
  }
  // The text of the object: the program parses it by itself.
  const auto settings =
      nlohmann::json::parse(request["generation_config"].get_ref<const std::string&>());
  CHECK(settings["do_sample"] == true);
  CHECK(settings["top_k"] == 0);
  CHECK(settings["temperature"] == 0.5);
  CHECK(settings["max_new_tokens"] == kMostTokens);
  CHECK(settings["eos_token_id"] == nlohmann::json(server.rules->end_tokens));
}

TEST_CASE("text completion: a prompt is the text that encodes to its tokens") {
  const TextServer plain, adding(true);
  std::vector<int32_t> with_bos = adding.ids(kAsked);
  with_bos.insert(with_bos.begin(), adding.bos);
  CHECK(text_of_prompt(*plain.rules, plain.ids(kAsked)) == kAsked);
  CHECK(text_of_prompt(*adding.rules, with_bos) == kAsked);
  CHECK(text_of_prompt(*plain.rules, with_bos) == "<|endoftext|>" + kAsked);
  const auto complaint = [](const TextServer& server, const std::vector<int32_t>& prompt) {
    return complaint_of_text([&] { text_of_prompt(*server.rules, prompt); });
  };
  // The server would add a token.
  CHECK_SAYS(complaint(adding, adding.ids(kAsked)),
             "rollout_server: transformers takes texts alone");
  // The tokens "Q" and "uestion" instead of "Question".
  std::vector<int32_t> split = plain.ids("Q");
  for (const int32_t id : plain.ids("uestion 37")) split.push_back(id);
  CHECK(split != plain.ids("Question 37"));
  CHECK_SAYS(complaint(plain, split), "does not encode to the");
  CHECK_SAYS(complaint(plain, split), "Question 37; leave out this question");
}

TEST_CASE("text completion: a text becomes tokens") {
  const TextServer server;
  const auto read = [&](const std::string& text, bool has_ended) {
    return completion_of_text(*server.rules, text, has_ended);
  };
  const auto completion = [](std::vector<int32_t> ids, bool has_end) {
    return Completion{.token_ids = std::move(ids), .logprobs = {}, .has_end = has_end};
  };
  CHECK(read("Question 37", true) == completion(server.ended("Question 37"), true));
  CHECK(read("Question 37", false) == completion(server.ids("Question 37"), false));
  CHECK(read("", true) == completion({server.end}, true));
  CHECK(read("", false).token_ids.empty());
  // An answer that spells out an end token ends there.
  CHECK(read("Question<|im_end|> 37", true) == completion(server.ended("Question"), true));
  CHECK(read("Question<|im_end|> 37", false) == completion(server.ended("Question"), true));
  CHECK(read("<|endoftext|>37", true) == completion({server.bos}, true));
  // Half of a character at the end of a truncated text; of an ended text it was sampled.
  CHECK(read("37\uFFFD", false) == completion(server.ids("37"), false));
  CHECK(read("37\uFFFD", true) == completion(server.ended("37\uFFFD"), true));
  CHECK(read("\uFFFD", false) == completion(server.ids("\uFFFD"), false));
  // As many tokens as an answer may have, and one more for the end.
  const std::string longest(kMostTokens - 1, 'z');
  CHECK(server.ids(longest).size() == kMostTokens - 1);
  CHECK(read(longest, true) == completion(server.ended(longest), true));
  CHECK(read(longest + "z", true) == completion(server.ids(longest + "z"), false));
  CHECK(read(longest + "zzz", false) == completion(server.ids(longest + "z"), false));
}

TEST_CASE("text completion: answers of the server and their faults") {
  const TextServer server;
  const std::vector<int32_t> prompt = server.ids(kAsked);
  const auto read = completions_from(response_of("37", "stop", prompt.size()).dump(), *server.rules,
                                     prompt, 1, "URL");
  REQUIRE(read.size() == 1);
  CHECK(read[0].token_ids == server.ended("37"));
  CHECK(read[0].logprobs.empty());
  CHECK_SAYS(server.complaint(response_of("37", "stop", prompt.size() + 1), prompt),
             "URL, prompt 1 of 1: the server read a prompt of another length");
  CHECK_SAYS(server.complaint(response_of(nullptr, "stop", prompt.size()), prompt),
             "the answer has no text (/choices/0/text); rollout_server is transformers");
  CHECK_SAYS(server.complaint(response_of("", "length", prompt.size()), prompt), "no tokens");
  CHECK_SAYS(server.complaint(response_of("37", "tool", prompt.size()), prompt),
             "ended by \"tool\"");
  CHECK_SAYS(server.complaint({{"detail", "?"}}, prompt), "ended by nothing");
  TextServer small;
  small.rules->vocab_size = 5;
  CHECK_SAYS(small.complaint(response_of("37", "stop", prompt.size()), prompt),
             "is no token of the model, whose vocabulary has 5");
}

}  // namespace
}  // namespace longspan
