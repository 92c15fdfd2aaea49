#include "longspan/account/run_account.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <mutex>

#include "longspan/account/held_parameters.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/config.h"
#include "longspan/expert_parallel/expert_parallel.h"
#include "longspan/session/trained_model.h"
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

AccountSettings account_settings(const Config& config) {
  return {config.model, config.method, config.preferences, config.optimization, config.memory};
}

/// Returns the memory estimate from the parameters that a run has made.
std::string account_of_made(const Config& config, const ModelConfig& model, const Mesh& mesh,
                            const ParallelPlan& plan, const RowLengths& row) {
  const std::optional<ShardingOptions> sharding = sharding_of(config, mesh, at::kCPU);
  TrainedModel trained = load_trained_model(config, {model, sharding, at::kCPU});
  ExpertParallel experts(mesh.experts);
  if (mesh.experts.size() > 1) trained.options.expert_exchange = &experts;
  const auto attention = make_local(cpu_block_kernel());
  Decoder policy(model.spec, trained.parameters, *attention, trained.options);
  RunParameters parameters{.used = trained.held(), .sharded = std::nullopt, .reference = {}};
  if (trained.sharded) parameters.sharded = trained.sharded->held_bytes();
  if (config.method.stage == "dpo") {
    parameters.reference =
        make_reference(config, {model, sharding, at::kCPU}, trained, policy, *attention)
            ->held_bytes();
  }
  return table_of(account_of(memory_facts(account_settings(config), {model.spec, plan}, parameters,
                                          row, {.num_threads = 2})));
}

/// Eight experts, no dense layers.
ModelConfig small_mixture() {
  ModelConfig model = small_model();
  model.model_type = "qwen3_moe";
  model.architecture = "Qwen3MoeForCausalLM";
  LayerSpec& layer = model.spec.pattern.front();
  std::get<SelfAttentionSpec>(layer.mixer).qkv_bias = false;
  MixtureOfExpertsSpec experts;
  experts.num_experts = 8;
  experts.experts_per_token = 2;
  experts.expert_size = 12;
  layer.feed_forward = experts;
  model.json = R"({"model_type": "qwen3_moe"})";
  return model;
}

TEST_CASE("run account: a reference holds buffers in fp32, as it is made") {
  ModelConfig model = small_mixture();
  auto& experts = std::get<MixtureOfExpertsSpec>(model.spec.pattern.front().feed_forward);
  experts.router.has_correction_bias = true;
  Config config;
  config.method.stage = "dpo";
  config.model.pure_bf16 = true;
  int num_buffers = 0;
  for (const HeldParameter& held : reference_parameters(account_settings(config), model.spec)) {
    CHECK(held.element_bytes == (is_buffer(held.spec.role) ? 4 : 2));
    num_buffers += is_buffer(held.spec.role);
  }
  CHECK(num_buffers == model.spec.num_layers);
}

TEST_CASE("run account: of experts that are shared out, too") {
  const testing::TemporaryFolder folder;
  const ModelConfig model = small_mixture();
  save_model_folder(folder.path, model, random_parameters(model, 1, at::kFloat), at::kFloat, "");
  const RowLengths row{.num_tokens = 700, .num_labels = 300};
  std::mutex mutex;
  std::vector<std::string> wrong;
  for (const auto& [num_ranks, shard_size] : {std::pair{2, 2}, {4, 4}, {2, 1}}) {
    ParallelPlan plan;
    plan.world_size = plan.data_size = num_ranks;
    plan.shard_size = shard_size;
    plan.expert_parallel_size = 2;
    testing::run_ranks(plan, [&](const Mesh& mesh) {
      for (const char* stage : {"sft", "dpo"}) {
        for (const char* type : {"full", "lora"}) {
          for (const int zero_stage : {0, 2, 3}) {
            if ((shard_size == 1) != (zero_stage == 0)) continue;
            Config config;
            config.model.model_name_or_path = folder.path;
            config.method.stage = stage;
            config.method.finetuning_type = type;
            config.optimization.bf16 = true;
            config.memory.zero_stage = zero_stage;
            config.memory.offload_optimizer = zero_stage == 3;
            const std::string made = account_of_made(config, model, mesh, plan, row);
            const std::string planned = table_of(planned_account(
                account_settings(config), {model.spec, plan}, row, {.num_threads = 2}));
            const std::lock_guard lock(mutex);
            if (made == planned) continue;
            wrong.push_back(fmt::format("{} {} zero {} on {}:\n{}\n{}", stage, type, zero_stage,
                                        num_ranks, made, planned));
          }
        }
      }
    });
  }
  CHECK(wrong == std::vector<std::string>{});
}

TEST_CASE("run account: a value head looks at the last token of each document") {
  const ModelConfig model = small_model();
  const ParallelPlan plan;
  const RowLengths row{.num_tokens = 90, .num_labels = 60, .documents = {{50}, {40}}};
  Config config;
  const auto labels = [&](const char* stage) {
    config.method.stage = stage;
    return memory_facts(account_settings(config), {model.spec, plan},
                        planned_run_parameters(account_settings(config), model.spec, plan), row, {})
        .num_labels;
  };
  CHECK(labels("sft") == 60);
  CHECK(labels("rm") == 2);
}

TEST_CASE("run account: attention of a GPU, by documents and by full_determinism") {
  Config config;
  const ModelConfig model = small_model();
  const ParallelPlan plan;
  const auto facts = [&](const std::vector<Document>& documents) {
    int64_t tokens = 0;
    for (const Document& document : documents) tokens += document.length;
    const AccountSettings settings = account_settings(config);
    return memory_facts(settings, {model.spec, plan},
                        planned_run_parameters(settings, model.spec, plan),
                        {.num_tokens = tokens, .documents = documents}, {.cuda = true});
  };
  CHECK(facts({{4096}}).num_documents == 1);
  CHECK_FALSE(facts({{4096}}).attends_in_calls);
  CHECK(facts({{4096}, {100}}).num_documents == 2);
  CHECK(facts({{4096}, {100}}).attends_in_calls);  // cuDNN's and another
  CHECK_FALSE(facts({{1000}, {100}}).attends_in_calls);
  CHECK(facts({{100}}).deterministic_multiprocessors == 0);
  config.model.full_determinism = true;
  CHECK(facts({{100}}).deterministic_multiprocessors > 0);
}

TEST_CASE("run account: before there is a tensor it is that of the tensors of a run") {
  const testing::TemporaryFolder folder;
  const ModelConfig model = small_model();
  save_model_folder(folder.path, model, random_parameters(model, 1, at::kFloat), at::kFloat, "");
  const RowLengths row{.num_tokens = 700, .num_labels = 300};
  std::mutex mutex;
  std::vector<std::string> wrong;
  for (const int num_ranks : {1, 2}) {
    ParallelPlan plan;
    plan.world_size = plan.data_size = plan.shard_size = num_ranks;
    testing::run_ranks(plan, [&](const Mesh& mesh) {
      for (const char* stage : {"sft", "dpo"}) {
        for (const char* type : {"full", "lora"}) {
          for (const bool bf16 : {false, true}) {
            for (const int zero_stage : {0, 2, 3}) {
              Config config;
              config.model.model_name_or_path = folder.path;
              config.method.stage = stage;
              config.method.finetuning_type = type;
              config.optimization.bf16 = bf16;
              config.memory.zero_stage = zero_stage;
              config.memory.offload_optimizer = config.memory.offload_params = zero_stage == 3;
              const std::string made = account_of_made(config, model, mesh, plan, row);
              const std::string planned = table_of(planned_account(
                  account_settings(config), {model.spec, plan}, row, {.num_threads = 2}));
              const std::lock_guard lock(mutex);
              if (made == planned) continue;
              wrong.push_back(fmt::format("{} {} bf16 {} zero {} on {}:\n{}\n{}", stage, type, bf16,
                                          zero_stage, num_ranks, made, planned));
            }
          }
        }
      }
    });
  }
  CHECK(wrong == std::vector<std::string>{});
}

}  // namespace
}  // namespace longspan
