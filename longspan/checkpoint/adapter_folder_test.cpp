#include "longspan/checkpoint/adapter_folder.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/safetensors.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/models/lora.h"
#include "longspan/testing/small_model.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

using nlohmann::json;

ModelConfig small_config() {
  testing::SmallModel config;
  config.vocab_size = 100;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  return config.config();
}

/// An adapter of rank 4 on q_proj and down_proj.
struct AdapterFolder {
  testing::TemporaryFolder folder;
  LoraShape shape;
  json config;

  AdapterFolder() {
    shape.r = 4;
    shape.alpha = 8;
    shape.modules = {"q_proj", "down_proj"};
    save_adapter(folder.path, small_config(),
                 {shape, new_lora_parameters(small_config().spec, shape, 1)}, at::kFloat, "");
    std::ifstream file(folder / "adapter_config.json");
    config = json::parse(file);
  }

  /// The message of load_adapter with these keys changed.
  std::string complaint(const json& changes) const {
    json changed = config;
    changed.update(changes);
    folder.write("adapter_config.json", changed.dump());
    try {
      load_adapter(folder.path, small_config());
    } catch (const UserError& error) {
      return error.what();
    }
    return "(accepted)";
  }
  bool says(const json& changes, const char* part) const {
    const std::string message = complaint(changes);
    INFO(message);
    return message.find(part) != std::string::npos;
  }
};

TEST_CASE("adapter: what is saved is loaded") {
  const AdapterFolder saved;
  const Adapter adapter = load_adapter(saved.folder.path, small_config());
  CHECK(adapter.shape.r == 4);
  CHECK(adapter.shape.alpha == 8);
  CHECK(adapter.shape.modules == saved.shape.modules);
  CHECK(adapter.parameters.size() == 8);
  CHECK(saved.complaint({{"r", 4.0}, {"lora_alpha", 7.5}}) == "(accepted)");
  CHECK(saved.complaint({{"target_modules", "q_proj|down_proj"}, {"use_rslora", nullptr}}) ==
        "(accepted)");
}

TEST_CASE("adapter: numbers that are no ranks and scales are refused by name") {
  const AdapterFolder saved;
  CHECK(saved.says({{"r", 4.7}}, "r: 4.7 was given; wanted is a whole number, at least 1"));
  CHECK(saved.says({{"r", 0}}, "r: 0 was given"));
  CHECK(saved.says({{"r", "4"}}, "r: string was given"));
  CHECK(saved.says({{"r", nullptr}}, "r: null was given"));
  CHECK(saved.says({{"r", UINT64_MAX}}, "r: 18446744073709551615 was given"));
  CHECK(saved.says({{"lora_alpha", "8"}}, "lora_alpha must be a number; it is string"));
  CHECK(saved.says({{"lora_alpha", nullptr}}, "lora_alpha must be a number"));
  CHECK(saved.says({{"lora_dropout", 1.5}}, "lora_dropout is 1.5; it must be from 0 to below 1"));
  CHECK(saved.says({{"lora_dropout", json::array()}}, "lora_dropout must be a number"));
  CHECK(saved.says({{"use_rslora", "yes"}}, "use_rslora must be true or false"));
  CHECK(saved.says({{"use_dora", 1}}, "use_dora must be true or false; it is 1"));
  CHECK(saved.says({{"target_modules", 3}}, "target_modules must be"));
  CHECK(saved.says({{"target_modules", {"q_proj", 3}}}, "target_modules must be"));
  json not_a_number = saved.config;
  std::string text = not_a_number.dump();
  text.replace(text.find("\"lora_alpha\":8"), 14, "\"lora_alpha\":NaN");
  saved.folder.write("adapter_config.json", text);
  CHECK_THROWS_AS(load_adapter(saved.folder.path, small_config()), UserError);
}

TEST_CASE("adapter: only what is known to be plain LoRA is taken") {
  const AdapterFolder saved;
  // PEFT's keys on how an adapter began, and on itself, change nothing of its matrices.
  for (const json& began : {json(true), json(false), json("gaussian"), json("orthogonal")}) {
    CHECK(saved.complaint({{"init_lora_weights", began}}) == "(accepted)");
  }
  CHECK(saved.complaint({{"revision", "main"},
                         {"loftq_config", {{"loftq_bits", 4}}},
                         {"megatron_core", "megatron.core"},
                         {"qalora_group_size", 16},
                         {"layers_to_transform", {0, 1}}}) == "(accepted)");
  CHECK(saved.complaint({{"of_tomorrow", nullptr},
                         {"another", false},
                         {"a_third", json::object()},
                         {"a_fourth", ""}}) == "(accepted)");
  CHECK(
      saved.says({{"init_lora_weights", "pissa"}},
                 "init_lora_weights is \"pissa\"; only plain LoRA is supported. Merge the adapter "
                 "into its model with PEFT"));
  const json other = {{"init_lora_weights", "pissa_niter_4"},
                      {"alora_invocation_tokens", {1, 2}},
                      {"velora_config", {{"scale", 1.0}}},
                      {"use_bdlora", {{"nblocks", 2}}},
                      {"monteclora_config", {{"n", 4}}},
                      {"arrow_config", {{"top_k", 3}}},
                      {"kasa_config", {{"beta", 1}}},
                      {"megatron_config", {{"a", 1}}},
                      {"rank_pattern", {{"q_proj", 8}}},
                      {"bias", "all"},
                      {"peft_type", "LOHA"}};
  for (const auto& [key, value] : other.items()) {
    CAPTURE(key);
    CHECK(saved.says({{key, value}}, "only plain LoRA is supported"));
  }
  for (const json& value : {json(true), json(1), json("a"), json({{"b", 1}}), json::array({0})}) {
    CHECK(saved.says({{"of_tomorrow", value}}, "the key is not known, and may change"));
  }
}

TEST_CASE("adapter: magnitudes and whole modules are there if the config names them") {
  const AdapterFolder saved;
  CHECK(saved.says({{"use_dora", true}}, "lora_magnitude_vector is not."));
  CHECK(saved.says({{"modules_to_save", {"norm"}}}, "norm.weight is missing, but modules_to_save"));
  CHECK(
      saved.says({{"modules_to_save", {"v_proj"}}}, "v_proj names model.layers.0.self_attn.v_pr"));
  CHECK(saved.says({{"modules_to_save", {"score"}}}, "no module whose name ends in score"));
  AdapterFolder other;
  other.shape.decomposed = true;
  other.shape.whole_modules = {"post_attention_layernorm"};
  std::vector<NamedTensor> parameters = new_lora_parameters(small_config().spec, other.shape, 1);
  CHECK(parameters.size() == 12);
  for (const char* layer : {"0", "1"}) {
    parameters.push_back({std::string("model.layers.") + layer + ".post_attention_layernorm.weight",
                          at::full({32}, 3.0, at::kFloat)});
  }
  save_adapter(other.folder.path, small_config(), {other.shape, parameters}, at::kFloat, "");
  const Adapter loaded = load_adapter(other.folder.path, small_config());
  CHECK(loaded.parameters.size() == 14);
  CHECK(loaded.shape.decomposed);
  CHECK(loaded.shape.whole_modules == other.shape.whole_modules);
  const json config = json::parse(std::ifstream(other.folder / "adapter_config.json"));
  other.config = config;
  CHECK(other.says({{"use_dora", false}}, "lora_magnitude_vector [32] does not fit the model"));
  CHECK(other.says({{"modules_to_save", nullptr}}, "layernorm.weight is not a matrix of a LoRA"));
}

TEST_CASE("adapter: its rank is the matrices' own before anything is made of it") {
  const AdapterFolder saved;
  AllocationCounter counter(AllocationCounter::Of::kProcess);
  CHECK(saved.says({{"r", 10'000'000}}, "[4, 32], but r is 10000000 in "));
  CHECK(saved.says({{"r", 3}}, "but r is 3 in "));
  CHECK(counter.peak_bytes() == 0);
}

TEST_CASE("adapter: matrices of whole numbers are refused by their dtype") {
  const AdapterFolder saved;
  const std::string path = saved.folder / "adapter_model.safetensors";
  const std::vector<NamedTensor> before = read_safetensors(path);
  write_safetensors(path, before, at::kInt);
  CHECK(saved.says(json::object(), "holds I32 numbers; F32, BF16, F16 and F64 are supported"));
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kDouble}) {
    write_safetensors(path, before, dtype);
    CHECK(saved.complaint(json::object()) == "(accepted)");
  }
}

}  // namespace
}  // namespace longspan
