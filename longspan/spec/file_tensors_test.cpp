#include "longspan/spec/file_tensors.h"

#include <doctest/doctest.h>

#include "longspan/testing/small_model.h"

namespace longspan {
namespace {

TEST_CASE("file tensors: which ones no parameter is stored in") {
  ModelSpec model = testing::SmallModel{.vocab_size = 8, .hidden_size = 4, .num_layers = 3}.spec();
  CHECK(why_left_out(model, "model.layers.7.self_attn.rotary_emb.inv_freq") ==
        LeftOut::kFrequencies);
  CHECK(why_left_out(model, "mtp.fc.weight") == LeftOut::kFurtherTokens);
  CHECK_FALSE(why_left_out(model, "model.mtp.fc.weight").has_value());
  CHECK_FALSE(why_left_out(model, "lm_head.weight").has_value());
  CHECK_FALSE(why_left_out(model, "model.layers.3.self_attn.q_proj.weight").has_value());
  model.tied_head = true;
  model.extra_layers = 1;
  CHECK(why_left_out(model, "lm_head.weight") == LeftOut::kTiedHead);
  CHECK(why_left_out(model, "model.layers.3.self_attn.q_proj.weight") == LeftOut::kFurtherTokens);
  CHECK_FALSE(why_left_out(model, "model.layers.30.self_attn.q_proj.weight").has_value());
}

TEST_CASE("file tensors: layers by the names of tensors") {
  CHECK(layer_of_tensor("model.layers.12.mlp.up_proj.weight") == "12");
  CHECK_FALSE(layer_of_tensor("model.norm.weight").has_value());
}

}  // namespace
}  // namespace longspan
