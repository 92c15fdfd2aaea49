#include "longspan/session/trained_model.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <mutex>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/config.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/small_model.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

ModelConfig small_model() {
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
struct Case {
  testing::TemporaryFolder folder;
  ModelConfig model = small_model();

  Case() {
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
  const Case model;
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

TEST_CASE("trained model: freezing goes by layers and the parts that users name") {
  const Case model;
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
}

}  // namespace
}  // namespace longspan
