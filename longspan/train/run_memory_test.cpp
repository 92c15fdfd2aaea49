#include "longspan/train/run_memory.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "longspan/config/config.h"
#include "longspan/testing/small_model.h"

namespace longspan {
namespace {

/// A run of two machines with two processes each.
struct TwoMachines {
  Config config;
  ModelConfig model = testing::SmallModel{.vocab_size = 40,
                                          .hidden_size = 24,
                                          .intermediate_size = 40,
                                          .num_layers = 2,
                                          .num_heads = 4,
                                          .num_kv_heads = 2,
                                          .head_dim = 6,
                                          .max_position_embeddings = 64}
                          .config();
  Rendezvous where;

  TwoMachines() {
    model.json = R"({"model_type": "llama"})";
    config.model.device = "cpu";
    config.memory.zero_stage = 3;
    config.memory.offload_optimizer = true;  // takes memory of the machine
    where.world_size = 4;
    where.local_world_size = 2;
  }
  RowLengths row() const { return {.num_tokens = 64, .num_labels = 64}; }
  AccountSettings settings() const {
    return {config.model, config.method, config.preferences, config.optimization, config.memory};
  }
  RunPlan plan() const { return plan_run(config, {}, where, &model); }
  std::string advice(int64_t of_process, int64_t of_machine) const {
    return advice_on_shards(settings(), row(), plan(),
                            {[&](int64_t /*beside*/) { return of_process; }, of_machine});
  }
};

TEST_CASE("run memory: zero_shard_size is named where a machine can hold the states") {
  constexpr int64_t kMuch = int64_t{1} << 40;
  TwoMachines run;
  const RunPlan plan = run.plan();
  ParallelPlan sharded = plan.of_longest_rows();
  sharded.shard_size = 2;
  const MemoryAccount account =
      planned_account(run.settings(), {plan.attended, sharded}, run.row(), plan.hardware());
  const int64_t needed = account.device + account.beside_tensors + account.host;
  REQUIRE(account.host > 0);
  CHECK(run.advice(needed, 2 * account.host).starts_with("zero_shard_size: 2 would fit, too ("));
  CHECK(run.advice(needed - 1, kMuch).empty());
  CHECK(run.advice(kMuch, 2 * account.host - 1).empty());

  run.config.memory.zero_shard_size = 4;  // by the user
  CHECK(run.advice(kMuch, kMuch).empty());
  run.config.memory.zero_shard_size.reset();
  run.config.memory.zero_stage = 0;
  CHECK(run.advice(kMuch, kMuch).empty());
  run.config.memory.zero_stage = 3;
  run.where.local_world_size = 1;
  CHECK(run.advice(kMuch, kMuch).empty());
  run.config.parallel.fast_domain_size = 2;
  CHECK_FALSE(run.advice(kMuch, kMuch).empty());
  run.config.parallel.fast_domain_size.reset();
  run.where.local_world_size = 4;  // one machine
  CHECK(run.advice(kMuch, kMuch).empty());
}

}  // namespace
}  // namespace longspan
