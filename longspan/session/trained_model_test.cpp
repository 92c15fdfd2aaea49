#include "longspan/session/trained_model.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <mutex>
#include <optional>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/config.h"
#include "longspan/session/parameter_sources.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/small_model.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

ModelConfig saved_config() {
  testing::SmallModel model;
  model.model_type = "qwen2";
  model.architecture = "Qwen2ForCausalLM";
  model.vocab_size = 50;
  model.hidden_size = 24;
  model.intermediate_size = 40;
  model.num_layers = 3;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 6;
  model.qkv_bias = true;
  ModelConfig config = model.config();
  config.json = R"({"model_type": "qwen2"})";
  return config;
}

/// A saved model, and configurations that train it.
struct SavedModel {
  testing::TemporaryFolder folder;
  ModelConfig model = saved_config();

  SavedModel() {
    save_model_folder(folder.path, model, random_parameters(model, 1, at::kFloat), at::kFloat, "");
  }

  Config config(const std::string& finetuning_type, const std::string& stage) const {
    Config config;
    config.model.model_name_or_path = folder.path;
    config.method.finetuning_type = finetuning_type;
    config.method.stage = stage;
    config.method.lora_target = "q_proj,down_proj";
    config.method.freeze_trainable_layers = 2;
    return config;
  }
};

enum class Dtype { kFp32, kBf16, kPureBf16 };

struct Division {
  int64_t zero_stage;
  bool offload_optimizer, offload_params;
};

TEST_CASE("trained model: what a run will hold is known before there is a tensor") {
  const SavedModel model;
  const ModelSpec& spec = model.model.spec;
  std::mutex mutex;
  std::vector<std::string> wrong;
  int num_checked = 0;
  const auto compare = [&](const Config& config, const Mesh& mesh, int num_ranks) {
    const AccountSettings settings{config.model, config.method, config.preferences,
                                   config.optimization, config.memory};
    const std::vector<HeldParameter> kept = planned_parameters(settings, spec);
    const TrainedModel trained =
        load_trained_model(config, {model.model, sharding_of(config, mesh, at::kCPU), at::kCPU});
    const bool divides = *config.memory.zero_stage > 0 || config.memory.offload_optimizer;
    bool same = trained.held() == used_parameters(settings, kept, num_ranks) &&
                (trained.sharded != nullptr) == divides;
    if (trained.sharded) {
      same = same && trained.sharded->held_bytes() == sharded_bytes(settings, kept, num_ranks);
    }
    const std::lock_guard lock(mutex);
    ++num_checked;
    if (same) return;
    wrong.push_back(fmt::format("{} {} bf16 {} pure {} zero {} offloads {} {} on {}",
                                config.method.finetuning_type, config.method.stage,
                                config.optimization.bf16, config.model.pure_bf16,
                                *config.memory.zero_stage, config.memory.offload_optimizer,
                                config.memory.offload_params, num_ranks));
  };
  for (const int num_ranks : {1, 2}) {
    ParallelPlan plan;
    plan.world_size = plan.data_size = plan.shard_size = num_ranks;
    testing::run_ranks(plan, [&](const Mesh& mesh) {
      for (const char* type : {"full", "lora", "freeze"}) {
        for (const char* stage : {"sft", "rm"}) {
          Config config = model.config(type, stage);
          for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kPureBf16}) {
            config.optimization.bf16 = dtype == Dtype::kBf16;
            config.model.pure_bf16 = dtype == Dtype::kPureBf16;
            for (const Division& division :
                 {Division{0, false, false}, Division{0, true, false}, Division{2, false, false},
                  Division{3, false, false}, Division{3, true, false}, Division{3, true, true}}) {
              config.memory.zero_stage = division.zero_stage;
              config.memory.offload_optimizer = division.offload_optimizer;
              config.memory.offload_params = division.offload_params;
              compare(config, mesh, num_ranks);
            }
          }
        }
      }
    });
  }
  CHECK(num_checked == 3 * 3 * 2 * 3 * 6);  // on one rank and on two
  CHECK(wrong == std::vector<std::string>{});
}

TEST_CASE("trained model: magnitudes begin as the lengths of rows, the same on every rank") {
  const SavedModel model;
  Config config = model.config("lora", "sft");
  config.method.use_dora = true;
  const std::optional<ShardingOptions> whole;
  const TrainedModel trained = load_trained_model(config, {model.model, whole, at::kCPU});
  std::map<std::string, at::Tensor> parameters;
  for (const auto& [name, tensor] : trained.parameters) parameters[name] = tensor;
  REQUIRE(trained.first_adapter.size() == 2 * 3);
  for (const auto& [name, magnitude] : trained.first_adapter) {
    const std::string linear = name.substr(0, name.rfind(".lora_"));
    CHECK(parameters.at(name).equal(magnitude));
    CHECK(at::allclose(magnitude, parameters.at(linear + ".weight").norm(2, {1}), 1e-6));
  }

  std::vector<std::string> errors(2);
  testing::run_ranks(2, [&](const Mesh& mesh) {
    const int rank = mesh.world.rank();
    const std::vector<NamedTensor> own = {{"m", at::full({2}, rank)}};
    require_same_adapter({}, own, mesh.world);
    require_same_adapter(config.method, {{"m", at::ones({2})}}, mesh.world);
    try {
      require_same_adapter(config.method, own, mesh.world);
    } catch (const UserError& error) {
      errors.at(rank) = error.what();
    }
  });
  CHECK(errors[0].starts_with("use_dora: rank 1 begins with other lengths of rows than rank 0."));
  CHECK(errors[1] == errors[0]);
}

TEST_CASE("trained model: no module is trained whole that the stage does not use") {
  ModelConfig model = saved_config();
  Config config = SavedModel().config("lora", "sft");
  config.method.additional_target = "lm_head,model.norm";
  CHECK(lora_shape_of(config.method, model.spec).whole_modules.size() == 2);
  config.method.stage = "rm";
  CHECK_THROWS_WITH_AS(lora_shape_of(config.method, model.spec),
                       doctest::Contains("stage: rm does not use lm_head, and would not train it"),
                       UserError);
  config.method.additional_target = "norm";
  CHECK_NOTHROW(lora_shape_of(config.method, model.spec));
}

TEST_CASE("trained model: freezing goes by layers and the parts that users name") {
  const SavedModel model;
  const ModelSpec& spec = model.model.spec;
  Config config = model.config("freeze", "sft");
  config.method.freeze_trainable_layers = 1;
  config.method.freeze_trainable_modules = "mlp,input_layernorm";
  config.method.freeze_extra_modules = "norm";
  const std::string last = "model.layers.2.";
  CHECK(trained_by_freeze(config.method, spec) ==
        std::set<std::string>{last + "mlp.gate_proj.weight", last + "mlp.up_proj.weight",
                              last + "mlp.down_proj.weight", last + "input_layernorm.weight",
                              "model.norm.weight"});
  config.method.freeze_trainable_layers = -1;
  CHECK(trained_by_freeze(config.method, spec).contains("model.layers.0.mlp.up_proj.weight"));
  config.method.freeze_trainable_layers = 4;
  CHECK_THROWS_WITH_AS(trained_by_freeze(config.method, spec),
                       doctest::Contains("4 layers, but the model has 3"), UserError);
  config.method.freeze_trainable_layers = 1;
  config.method.freeze_trainable_modules = "mlp,experts";
  CHECK_THROWS_WITH_AS(trained_by_freeze(config.method, spec), doctest::Contains("experts"),
                       UserError);
  config.method.freeze_trainable_modules = "mlp";
  config.method.freeze_extra_modules = "norm,lm_head";
  CHECK(trained_by_freeze(config.method, spec).contains("lm_head.weight"));
  config.method.stage = "rm";
  CHECK_THROWS_WITH_AS(trained_by_freeze(config.method, spec),
                       doctest::Contains("stage: rm does not use lm_head.weight"), UserError);
}

}  // namespace
}  // namespace longspan
