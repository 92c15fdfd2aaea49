// Compares layers whose experts are divided among ranks with layers that have all experts, in fp64.
#include "longspan/expert_parallel/expert_parallel.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/models/decoder.h"
#include "longspan/plan/expert_volume.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/expert_cases.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

using Gradients = std::map<std::string, at::Tensor>;

constexpr int kNumRanks = 4;

struct Outcome {
  at::Tensor loss;
  Gradients gradients;
  at::Tensor counts_LE;  // rows by expert
  int64_t forward_bytes = 0, backward_bytes = 0;
  ExpertParallel::Use forward, backward;
};

/// The outcome with these leaves.
Outcome outcome_of(const ModelSpec& spec, const std::vector<NamedTensor>& leaves,
                   const Batch& batch, DecoderOptions options, ExpertParallel* experts) {
  const auto attention = make_local(cpu_block_kernel());
  options.expert_exchange = experts;
  Decoder model(spec, leaves, *attention, options);
  ExpertLoad load(spec.num_layers, 12);
  model.count_experts(&load);
  const auto sent = [&] { return experts ? experts->group().traffic().all_to_all : 0; };
  const auto used = [&] { return experts ? experts->used() : ExpertParallel::Use(); };
  const int64_t begin = sent();
  Outcome outcome;
  const at::Tensor loss = model.negative_log_likelihood_sum(batch);
  outcome.forward_bytes = sent() - begin;
  outcome.forward = used();
  torch::autograd::backward({loss}, {});
  outcome.backward_bytes = sent() - begin - outcome.forward_bytes;
  outcome.backward = used();
  outcome.loss = loss.detach();
  outcome.counts_LE = load.counts_LE();
  outcome.gradients = testing::take_gradients(leaves);
  return outcome;
}

/// The leaves of one rank.
std::vector<NamedTensor> own_leaves(const ModelSpec& spec, const std::vector<NamedTensor>& all,
                                    const ExpertParallel* experts) {
  std::vector<NamedTensor> own;
  const std::vector<ParameterSpec> specs = parameters_of(spec);
  for (size_t i = 0; i < specs.size(); ++i) {
    if (experts && specs[i].expert) {
      const ExpertRange here = experts->here(specs[i].expert->count);
      if (specs[i].expert->number < here.begin || specs[i].expert->number >= here.end) continue;
    }
    own.push_back({all[i].name, all[i].tensor.detach().clone().set_requires_grad(
                                    all[i].tensor.requires_grad())});
  }
  return own;
}

ParallelPlan plan_of(int expert_parallel_size) {
  ParallelPlan plan;
  plan.world_size = plan.data_size = kNumRanks;
  plan.expert_parallel_size = expert_parallel_size;
  return plan;
}

/// Rows of a rank that go to experts of other ranks, over all layers.
int64_t rows_elsewhere(const at::Tensor& counts_LE, int rank, int expert_parallel_size) {
  const int64_t own = counts_LE.size(1) / expert_parallel_size;
  const int64_t begin = rank % expert_parallel_size * own;
  return (counts_LE.sum() - counts_LE.narrow(1, begin, own).sum()).item().toLong();
}

TEST_CASE("expert parallelism: losses and all gradients are those of ranks that have all experts") {
  const ModelSpec spec = testing::shared_out_model();
  const std::vector<NamedTensor> all = testing::shared_out_leaves(spec);
  std::vector<Batch> batches;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    batches.push_back(testing::batch_of_rank(spec, rank));
  }
  for (const bool checkpointing : {false, true}) {
    CAPTURE(checkpointing);
    const DecoderOptions options{.gradient_checkpointing = checkpointing};
    std::vector<Outcome> alone;
    for (const Batch& batch : batches) {
      alone.push_back(outcome_of(spec, own_leaves(spec, all, nullptr), batch, options, nullptr));
    }
    // The cases need an expert without rows, and unequal loads.
    at::Tensor counts_LE = at::zeros_like(alone[0].counts_LE);
    for (const Outcome& outcome : alone) counts_LE += outcome.counts_LE;
    REQUIRE(counts_LE[2].narrow(0, 9, 3).sum().item<double>() == 0.0);
    REQUIRE(counts_LE[0].max().item<double>() > 2 * counts_LE[0].min().item<double>());

    for (const int size : {2, 4}) {
      CAPTURE(size);
      std::vector<Outcome> outcomes(kNumRanks);
      testing::run_ranks(plan_of(size), [&](const Mesh& mesh) {
        ExpertParallel experts(mesh.experts);
        const int rank = mesh.world.rank();
        outcomes[rank] =
            outcome_of(spec, own_leaves(spec, all, &experts), batches[rank], options, &experts);
      });
      int64_t num_rows = 0, forward_bytes = 0, backward_bytes = 0;
      for (int rank = 0; rank < kNumRanks; ++rank) {
        CAPTURE(rank);
        const Outcome& outcome = outcomes[rank];
        CHECK(at::allclose(outcome.loss, alone[rank].loss, 0, 1e-11));
        CHECK(at::equal(outcome.counts_LE, alone[rank].counts_LE));
        // An expert's gradient sums over the rows of all ranks that share it.
        Gradients expected = alone[rank].gradients;
        for (const ParameterSpec& parameter : parameters_of(spec)) {
          if (!parameter.expert) continue;
          at::Tensor& gradient = expected.at(parameter.name);
          gradient = at::zeros_like(gradient);
          if (place_of(*parameter.expert, size) != rank % size) {
            expected.erase(parameter.name);
            continue;
          }
          for (int other = rank - rank % size; other < rank - rank % size + size; ++other) {
            gradient += alone[other].gradients.at(parameter.name);
          }
        }
        testing::check_equal(outcome.gradients, expected, 1e-11);
        const int64_t rows = rows_elsewhere(outcome.counts_LE, rank, size);
        CHECK(outcome.forward.num_rows == rows);
        CHECK(outcome.backward.num_rows == 2 * rows);
        CHECK(outcome.forward.num_opened == 2);
        CHECK(outcome.backward.num_opened == 2);  // exchanges no number that the host knows
        num_rows += rows;
        forward_bytes += outcome.forward_bytes;
        backward_bytes += outcome.backward_bytes;
      }
      const ExpertShape shape{.num_experts = 12,
                              .hidden_size = spec.hidden_size,
                              .element_bytes = 8,
                              .weight_bytes = 8};
      const ExpertVolume volume = expert_volume(size, shape, num_rows, 2 * kNumRanks);
      CHECK(forward_bytes == volume.forward);
      CHECK(backward_bytes == volume.backward);
    }
  }
}

TEST_CASE("expert parallelism: in bf16 rows travel in bf16, and weights in fp32") {
  // A rank's rows and their results: tensors of several dtypes in one message.
  std::vector<std::string> wrong(2);
  testing::run_ranks(
      [] {
        ParallelPlan plan;
        plan.world_size = plan.data_size = plan.expert_parallel_size = 2;
        return plan;
      }(),
      [&](const Mesh& mesh) {
        ExpertParallel experts(mesh.experts);
        const int rank = mesh.world.rank();
        // Rank 0 sends 1, 0, 2, 3 rows to the four experts, and rank 1 2, 1, 0, 0.
        const at::Tensor counts_E =
            rank == 0 ? at::tensor({1, 0, 2, 3}, at::kLong) : at::tensor({2, 1, 0, 0}, at::kLong);
        const int64_t R = counts_E.sum().item<int64_t>();
        const at::Tensor x_RD = (at::arange(R * 3).view({R, 3}) + 100 * rank).to(at::kBFloat16);
        const at::Tensor w_R = (at::arange(R) * 0.1 + rank).to(at::kFloat);
        const auto routes = experts.open(counts_E);
        const std::vector<at::Tensor> arrived = routes->to_experts({x_RD, w_R});
        // Expert 0 gets row 0 of rank 0 and rows 0, 1 of rank 1, and so on.
        const at::Tensor rows = rank == 0 ? at::tensor({0, 100, 103, 106}, at::kLong)
                                          : at::tensor({3, 6, 9, 12, 15}, at::kLong);
        const bool right = routes->counts() == (rank == 0 ? std::vector<int64_t>{3, 1}
                                                          : std::vector<int64_t>{2, 3}) &&
                           arrived[0].scalar_type() == at::kBFloat16 &&
                           at::equal(arrived[0].select(1, 0), rows.to(at::kBFloat16)) &&
                           arrived[1].scalar_type() == at::kFloat;
        if (!right) wrong[rank] = "what arrived";
        const std::vector<at::Tensor> returned = routes->back(arrived);
        if (!at::equal(returned[0], x_RD) || !at::equal(returned[1], w_R)) {
          wrong[rank] += " what came back";
        }
      });
  CHECK(wrong == std::vector<std::string>(2));
}

}  // namespace
}  // namespace longspan
