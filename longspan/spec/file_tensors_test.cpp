#include "longspan/spec/file_tensors.h"

#include <doctest/doctest.h>

#include "longspan/testing/small_model.h"

namespace longspan {
namespace {

TEST_CASE("file tensors: which ones no parameter is stored in") {
  ModelSpec model = testing::SmallModel{.vocab_size = 8, .hidden_size = 4, .num_layers = 3}.spec();
  CHECK(is_redundant_tensor(model, "model.layers.7.self_attn.rotary_emb.inv_freq"));
  CHECK(is_redundant_tensor(model, "mtp.fc.weight"));
  CHECK(predicts_further_tokens(model, "mtp.fc.weight"));
  CHECK_FALSE(is_redundant_tensor(model, "model.mtp.fc.weight"));
  CHECK_FALSE(is_redundant_tensor(model, "lm_head.weight"));
  CHECK_FALSE(is_redundant_tensor(model, "model.layers.3.self_attn.q_proj.weight"));
  model.tied_head = true;
  model.extra_layers = 1;
  CHECK(is_redundant_tensor(model, "lm_head.weight"));
  CHECK(is_redundant_tensor(model, "model.layers.3.self_attn.q_proj.weight"));
  CHECK(predicts_further_tokens(model, "model.layers.3.self_attn.q_proj.weight"));
  CHECK_FALSE(predicts_further_tokens(model, "lm_head.weight"));
  CHECK_FALSE(is_redundant_tensor(model, "model.layers.30.self_attn.q_proj.weight"));
}

TEST_CASE("file tensors: layers by the names of tensors") {
  CHECK(layer_of_tensor("model.layers.12.mlp.up_proj.weight") == "12");
  CHECK_FALSE(layer_of_tensor("model.norm.weight").has_value());
}

}  // namespace
}  // namespace longspan
