#include "longspan/models/model_config.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

const Json kSmall = {{"model_type", "llama"},    {"vocab_size", 100},
                     {"hidden_size", 64},        {"intermediate_size", 96},
                     {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                     {"num_key_value_heads", 2}, {"max_position_embeddings", 128}};

ModelConfig load(const std::string& text) {
  const testing::TemporaryFolder folder;
  return load_model_config(folder.write("config.json", text));
}

ModelConfig load(const Json& changes) {
  Json json = kSmall;
  json.merge_patch(changes);
  return load(json.dump());
}

SelfAttentionSpec mixer_of(const ModelConfig& config) {
  return std::get<SelfAttentionSpec>(config.spec.pattern.front().mixer);
}

TEST_CASE("model config: defaults of the families") {
  const auto llama = load(Json::object());
  CHECK(mixer_of(llama).attention.key_dim == 16);
  CHECK(llama.rotary.theta == 10000.0);
  CHECK_FALSE(mixer_of(llama).qkv_bias);
  CHECK_FALSE(llama.spec.tied_head);
  const auto qwen2 = load({{"model_type", "qwen2"}, {"tie_word_embeddings", true}});
  CHECK(mixer_of(qwen2).qkv_bias);
  CHECK_FALSE(mixer_of(qwen2).output_bias);
  CHECK(qwen2.spec.tied_head);
  CHECK(mixer_of(load({{"num_key_value_heads", nullptr}})).attention.num_kv_heads == 4);
  CHECK(mixer_of(load({{"head_dim", 32}})).attention.key_dim == 32);
}

TEST_CASE("model config: rope as transformers 4 and 5 write it") {
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  const auto four = load({{"rope_theta", 5e5}, {"rope_scaling", llama3}});
  Json parameters = llama3;
  parameters["rope_theta"] = 5e5;
  const auto five = load({{"rope_parameters", parameters}});
  for (const auto& config : {four, five}) {
    CHECK(config.rotary.theta == 5e5);
    CHECK((config.rotary.scaling.type == RopeScaling::Type::kLlama3));
    CHECK(config.rotary.scaling.factor == 8.0);
    CHECK(config.rotary.scaling.original_max_position_embeddings == 64);
  }
  const auto linear = load({{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}});
  CHECK((linear.rotary.scaling.type == RopeScaling::Type::kLinear));
  const auto yarn = load({{"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}});
  CHECK(yarn.rotary.scaling.original_max_position_embeddings == 128);
  CHECK(yarn.rotary.scaling.beta_fast == 32.0);
}

TEST_CASE("model config: which layers of Qwen2 and Qwen3 have a window, as transformers has it") {
  using Windows = std::vector<std::optional<int64_t>>;
  const auto windows = [](const Json& changes) {
    Json json = {{"use_sliding_window", true}, {"num_hidden_layers", 3}};
    json.update(changes);
    Windows all;
    std::optional<Windows> first;
    for (const char* type : {"qwen2", "qwen3"}) {
      json["model_type"] = type;
      const ModelSpec model = load(json).spec;
      all.clear();
      for (int64_t i = 0; i < model.num_layers; ++i) {
        all.push_back(std::get<SelfAttentionSpec>(model.layer(i).mixer).attention.window);
      }
      if (first) CHECK(all == *first);
      first = all;
    }
    return all;
  };
  const std::optional<int64_t> none;
  CHECK(windows({{"max_window_layers", 1}}) == Windows{none, 4096, 4096});
  CHECK(windows({{"max_window_layers", 0}, {"sliding_window", 9}}) == Windows{9, 9, 9});
  CHECK(windows({{"sliding_window", 9}}) == Windows{none, none, none});  // windows from layer 28 on
  CHECK(windows({{"max_window_layers", 0}, {"use_sliding_window", false}}) ==
        Windows{none, none, none});
  const Json types = {"sliding_attention", "full_attention", "sliding_attention"};
  CHECK(windows({{"max_window_layers", 3}, {"sliding_window", 9}, {"layer_types", types}}) ==
        Windows{9, none, 9});
  const Json full = {"full_attention", "full_attention", "full_attention"};
  CHECK(windows({{"max_window_layers", 0}, {"layer_types", full}}) == Windows{none, none, none});
}

TEST_CASE("model config: mistakes are named") {
  const auto complaint = [](const auto& changes) -> std::string {
    try {
      load(changes);
    } catch (const UserError& error) {
      return error.what();
    }
    return "(accepted)";
  };
  const auto says = [&](const auto& changes, const char* part) {
    const std::string message = complaint(changes);
    INFO(message);
    return message.find(part) != std::string::npos;
  };
  CHECK(says(std::string("{\n\"a\": \n}"), "line 3"));
  CHECK(says(std::string("[]"), "not a JSON object"));
  CHECK(says(Json{{"model_type", "gpt2"}},
             "model_type gpt2 is not supported; qwen2 (Qwen2, Qwen2.5), qwen3"));
  CHECK(says(Json{{"model_type", nullptr}}, "model_type is missing"));
  // The family with the nearest name, and the keys that it does not know.
  CHECK(says(Json{{"model_type", "mixtral"},
                  {"num_local_experts", 8},
                  {"num_experts_per_tok", 2},
                  {"router_jitter_noise", 0.0},
                  {"transformers_version", "4.36.0"},
                  {"rope_theta", 1e6}},
             "The nearest is mistral (Mistral 7B, Nemo, Small), which does not know these keys of "
             "the file: num_experts_per_tok, num_local_experts."));
  CHECK(says(Json{{"model_type", "qwen2_moe"}, {"num_experts", 8}},
             "The nearest is qwen3_moe (Qwen3 30B-A3B, 235B-A22B), and as one of these the file is "
             "refused: num_experts_per_tok is missing."));
  CHECK(
      says(Json{{"model_type", "llamas"}},
           "The nearest is llama (Llama 2, 3, 3.x), which knows all keys of the file: what differs "
           "is in its layers alone."));
  // GLM-5: latent attention with keys that an indexer selects.
  CHECK(says(Json{{"model_type", "glm_moe_dsa"},
                  {"hidden_size", 6144},
                  {"num_attention_heads", 64},
                  {"num_key_value_heads", 64},
                  {"kv_lora_rank", 512},
                  {"q_lora_rank", 2048},
                  {"qk_nope_head_dim", 192},
                  {"qk_rope_head_dim", 64},
                  {"v_head_dim", 256},
                  {"moe_intermediate_size", 2048},
                  {"n_routed_experts", 256},
                  {"n_shared_experts", 1},
                  {"num_experts_per_tok", 8},
                  {"num_hidden_layers", 78},
                  {"index_head_dim", 128},
                  {"index_n_heads", 32},
                  {"index_topk", 2048}},
             "The nearest is deepseek_v3 (DeepSeek-V3, V3.1, R1), which does not know these keys "
             "of the file: index_head_dim, index_n_heads, index_topk."));
  // Models of text and images whose language model is unsupported.
  CHECK(says(Json{{"model_type", "llava"}, {"text_config", {{"model_type", "llama"}}}},
             "the language model is trained of these alone: qwen2_vl, qwen2_5_vl, qwen3_vl, "
             "qwen3_vl_moe, qwen3_5, qwen3_5_moe, mistral3 and gemma3."));
  // If no name is near: the family by its keys.
  CHECK(
      says(Json{{"model_type", "starcoder"}, {"mlp_bias", true}, {"attention_bias", true}},
           "The nearest is llama (Llama 2, 3, 3.x), which knows all keys of the file: what differs "
           "is in its layers alone."));
  const Json none = {{"model_type", "gpt2"}, {"hidden_size", nullptr}, {"n_embd", 768}};
  CHECK(says(none, "model_type gpt2 is not supported"));
  CHECK_FALSE(says(none, "nearest"));
  CHECK(says(Json{{"architectures", {"LlamaForSequenceClassification"}}}, "LlamaForCausalLM is"));
  CHECK(says(Json{{"hidden_size", nullptr}}, "hidden_size is missing"));
  CHECK(says(Json{{"hidden_size", "64"}}, "whole number"));
  CHECK(says(Json{{"hidden_size", 0}}, "must be positive"));
  CHECK(says(Json{{"hidden_size", 66}}, "not a multiple of num_attention_heads"));
  CHECK(says(Json{{"vocab_size", int64_t{1} << 40}},
             "vocab_size is 1099511627776, it must be at most 2147483647"));
  CHECK(says(Json{{"num_hidden_layers", UINT64_MAX}},
             "num_hidden_layers is 18446744073709551615, which is too large"));
  CHECK(says(Json{{"num_hidden_layers", 2147483647}, {"hidden_size", 2147483640}},
             "num_hidden_layers 2147483647 and 4 heads of 536870910"));
  CHECK(says(Json{{"num_attention_heads", 2147483646},
                  {"num_key_value_heads", 2147483646},
                  {"head_dim", 2147483646}},
             "more than the 9007199254740992 that can be counted"));
  CHECK(says(Json{{"pad_token_id", UINT64_MAX}}, "which is too large"));
  CHECK(says(Json{{"max_position_embeddings", 0}}, "must be positive"));
  CHECK(says(Json{{"max_position_embeddings", INT64_MAX}}, "at most 1099511627776"));
  CHECK(says(Json{{"rope_scaling",
                   {{"rope_type", "yarn"},
                    {"factor", 2.0},
                    {"original_max_position_embeddings", INT64_MAX}}}},
             "original_max_position_embeddings is 9223372036854775807, it must be at most"));
  CHECK(says(Json{{"num_key_value_heads", 3}}, "not a multiple of num_key_value_heads"));
  CHECK(says(Json{{"head_dim", 15}}, "odd"));
  CHECK(says(Json{{"hidden_act", "gelu"}}, "hidden_act gelu is not supported; silu is"));
  CHECK(says(Json{{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}},
             "dynamic is not supported; default, linear, llama3, yarn, longrope are"));
  CHECK(says(Json{{"rope_scaling", {{"rope_type", "longrope"}}}}, "short_factor is missing"));
  CHECK(says(Json{{"rope_scaling", {{"rope_type", "linear"}}}}, "factor is missing"));
  CHECK(says(Json{{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}},
             "low_freq_factor is missing"));
  const auto with_window = [](Json json) {
    json.update({{"model_type", "qwen2"}, {"use_sliding_window", true}});
    return json;
  };
  CHECK(says(with_window({{"sliding_window", 0}}), "sliding_window is 0"));
  CHECK(
      says(Json{{"model_type", "qwen3"}, {"layer_types", {"full_attention", "sliding_attention"}}},
           "layer_types has sliding_attention, but there is no window"));
  CHECK(says(with_window({{"layer_types", {"sliding_attention"}}}),
             "layer_types must be a list of one kind for each of 2 layers"));
  CHECK(says(with_window({{"num_hidden_layers", 5000}, {"max_window_layers", 4000}}),
             "num_hidden_layers is 5000, and max_window_layers 4000: at most 1024 may differ"));
  CHECK(says(Json{{"attention_dropout", "0.1"}}, "attention_dropout must be a number"));
  CHECK_NOTHROW(load({{"attention_dropout", 0.1}}));
  CHECK_THROWS_WITH_AS(load_model_config("some/name"), doctest::Contains("download the folder"),
                       UserError);
}

}  // namespace
}  // namespace longspan
