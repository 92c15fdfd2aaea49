#include "longspan/rollouts/completion.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"

namespace longspan {
namespace {

const std::vector<int32_t> kPrompt = {1, 7, 9};

CompletionRules rules_of(std::string_view kind) {
  return {.kind = server_kind_named(kind),
          .model = "base",
          .adapter = "",
          .max_length = 4,
          .temperature = 0.5,
          .end_tokens = {2, 3},
          .vocab_size = 100};
}

nlohmann::json request_of(CompletionRules rules) {
  return nlohmann::json::parse(completion_request(rules, kPrompt, 3, 42));
}

nlohmann::json vllm_choice(const nlohmann::json& ids, const nlohmann::json& logprobs,
                           const std::string& finish) {
  return {{"index", 0},
          {"text", "?"},
          {"finish_reason", finish},
          {"token_ids", ids},
          {"prompt_token_ids", kPrompt},
          {"logprobs", {{"token_logprobs", logprobs}}}};
}

std::string completion_complaint(const nlohmann::json& choice, std::string_view kind = "vllm") {
  const CompletionRules rules = rules_of(kind);
  const nlohmann::json body =
      rules.kind.choices.empty() ? choice : nlohmann::json{{"choices", {choice}}};
  try {
    completions_from(body.dump(), rules, kPrompt, 2, "URL, prompt 1 of 1");
  } catch (const UserError& error) {
    CHECK(std::string(error.what()).starts_with("URL, prompt 1 of 1: "));
    return error.what();
  }
  return "";
}

bool says(const std::string& complaint, const std::string& words) {
  CAPTURE(complaint);
  return complaint.find(words) != std::string::npos;
}

TEST_CASE("completion: the requests of each kind of server") {
  const nlohmann::json vllm = request_of(rules_of("vllm"));
  CHECK(vllm["prompt"] == nlohmann::json(kPrompt));
  CHECK(vllm["n"] == 3);
  CHECK(vllm["seed"] == 42);
  CHECK(vllm["max_tokens"] == 4);
  CHECK(vllm["temperature"] == 0.5);
  CHECK(vllm["model"] == "base");
  CHECK(vllm["return_token_ids"] == true);
  CHECK(vllm["stop_token_ids"] == nlohmann::json({2, 3}));
  CompletionRules with_adapter = rules_of("vllm");
  with_adapter.adapter = "adapter-7";
  CHECK(request_of(with_adapter)["model"] == "adapter-7");

  CompletionRules sglang = rules_of("sglang");
  sglang.adapter = "adapter-7";
  const nlohmann::json request = request_of(sglang);
  CHECK(request["input_ids"] == nlohmann::json(kPrompt));
  CHECK(request["lora_path"] == "adapter-7");
  CHECK_FALSE(request.contains("model"));
  CHECK(request["sampling_params"]["n"] == 3);
  CHECK(request["sampling_params"]["max_new_tokens"] == 4);
  CHECK(request["sampling_params"]["top_k"] == -1);
  CHECK_FALSE(request.contains(""));

  const nlohmann::json llama = request_of(rules_of("llama_cpp"));
  CHECK(llama["return_tokens"] == true);
  CHECK(llama["n_predict"] == 4);
  CHECK_FALSE(llama.contains("n"));
}

TEST_CASE("completion: each kind's answers become the same") {
  const Completion ended{.token_ids = {5, 6, 2}, .logprobs = {-1, -0.5, 0}, .has_end = true};
  const Completion truncated{
      .token_ids = {5, 6, 7, 8}, .logprobs = {-1, -2, -3, -4}, .has_end = false};
  const auto read = [](std::string_view kind, const nlohmann::json& body, int64_t count) {
    return completions_from(body.dump(), rules_of(kind), kPrompt, count, "URL");
  };
  // A log-probability above 0 by rounding is 0.
  const nlohmann::json choices = {vllm_choice({5, 6, 2}, {-1, -0.5, 1e-7}, "stop"),
                                  vllm_choice({5, 6, 7, 8}, {-1, -2, -3, -4}, "length")};
  CHECK(read("vllm", {{"choices", choices}}, 2) == std::vector{ended, truncated});
  CHECK(read("openai", {{"choices", choices}}, 3).size() == 2);

  const auto of_sglang = [](const nlohmann::json& tokens,
                            const std::string& finish) -> nlohmann::json {
    return {{"text", "?"},
            {"output_ids", nlohmann::json::array()},
            {"meta_info",
             {{"prompt_tokens", 3},
              {"finish_reason", {{"type", finish}, {"matched", 2}}},
              {"output_token_logprobs", tokens}}}};
  };
  const nlohmann::json first =
      of_sglang({{-1, 5, nullptr}, {-0.5, 6, nullptr}, {0, 2, nullptr}}, "stop");
  const nlohmann::json second =
      of_sglang({{-1, 5, "a"}, {-2, 6, "b"}, {-3, 7, "c"}, {-4, 8, "d"}}, "length");
  CHECK(read("sglang", nlohmann::json::array({first, second}), 2) == std::vector{ended, truncated});
  CHECK(read("sglang", first, 1) == std::vector{ended});

  const nlohmann::json llama = {
      {"tokens", {5, 6, 2}}, {"stop_type", "eos"}, {"tokens_evaluated", 3}};
  Completion without_logprobs = ended;
  without_logprobs.logprobs.clear();
  CHECK(read("llama_cpp", llama, 1) == std::vector{without_logprobs});
}

TEST_CASE("completion: answers that the server broke off are left out") {
  const nlohmann::json choices = {vllm_choice({5}, {-1}, "abort"),
                                  vllm_choice({5, 2}, {-1, -1}, "stop")};
  const auto read = completions_from(nlohmann::json{{"choices", choices}}.dump(), rules_of("vllm"),
                                     kPrompt, 2, "URL");
  CHECK(read.size() == 1);
  CHECK(read[0].token_ids == std::vector<int32_t>{5, 2});
}

TEST_CASE("completion: each fault of an answer is named") {
  const auto good = [] { return vllm_choice({5, 6, 2}, {-1, -1, -1}, "stop"); };
  CHECK(completion_complaint(good()) == "");
  const auto with = [&](const std::string& key, const nlohmann::json& value) {
    nlohmann::json choice = good();
    choice[key] = value;
    return completion_complaint(choice);
  };
  CHECK(says(with("token_ids", nullptr), "no token ids"));
  CHECK(says(with("token_ids", {5, 100, 2}), "100 is no token id; the vocabulary has 100"));
  CHECK(says(with("token_ids", {5, -1, 2}), "-1 is no token id"));
  CHECK(says(with("token_ids", {5, 1.5, 2}), "1.5 is no token id"));
  CHECK(says(with("token_ids", {5, "6", 2}), "is no token id"));
  CHECK(says(with("token_ids", {5, 2}), "2 token ids and 3 log-probabilities"));
  CHECK(says(with("token_ids", {5, 2, 6}), "goes on after its token 2"));
  CHECK(says(with("token_ids", {2, 5, 2}), "goes on after its token 2"));
  // vLLM's last token has ended the answer, also where this run does not know it.
  CHECK(with("token_ids", {5, 6, 7}) == "");
  CHECK(says(completion_complaint(vllm_choice({5, 7}, {-1, -1}, "stop"), "openai"),
             "its last token, 7, is no token that ends"));
  CHECK(says(with("logprobs", nullptr), "no log-probabilities"));
  CHECK(says(with("logprobs", {{"token_logprobs", {-1, nullptr, -1}}}), "null is no log-prob"));
  CHECK(says(with("logprobs", {{"token_logprobs", {-1, 0.5, -1}}}), "0.5 is no log-prob"));
  CHECK(says(with("prompt_token_ids", {1, 7}), "another prompt than the sent one: [1,7]"));
  CHECK(says(with("prompt_token_ids", nullptr), "does not repeat the prompt"));
  CHECK(says(with("finish_reason", "content_filter"), "ended by \"content_filter\""));
  CHECK(says(with("finish_reason", nullptr), "ended by null"));
  CHECK(says(
      completion_complaint(vllm_choice(nlohmann::json::array(), nlohmann::json::array(), "stop")),
      "no tokens"));
  CHECK(says(completion_complaint(vllm_choice({5, 5, 5, 5, 2}, {-1, -1, -1, -1, -1}, "stop")),
             "5 tokens, more than max_completion_length (4)"));
  // The end token may come with the last possible token.
  CHECK(completion_complaint(vllm_choice({5, 2}, {-1, -1}, "length")) == "");
  const nlohmann::json llama = {{"tokens", {2}}, {"stop_type", "eos"}, {"tokens_evaluated", 4}};
  CHECK(says(completion_complaint(llama, "llama_cpp"), "another length: 4; sent were 3 tokens"));
  const auto garbage = [](const std::string& body) -> std::string {
    try {
      completions_from(body, rules_of("vllm"), kPrompt, 1, "URL");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(says(garbage("<html>"), "URL: the answer is no JSON: <html>"));
  CHECK(says(garbage("3"), "no JSON"));
  CHECK(says(garbage("{}"), "no list of 1 to 1 answers"));
  CHECK(says(garbage("{\"choices\": []}"), "no list of 1 to 1 answers"));
  CHECK(says(garbage(nlohmann::json{{"choices", {good(), good()}}}.dump()),
             "no list of 1 to 1 answers"));
  CHECK(says(garbage("{\"choices\": [3]}"), "ended by nothing"));
  CHECK(says(garbage(std::string(100000, '[')), "no JSON"));
}

}  // namespace
}  // namespace longspan
