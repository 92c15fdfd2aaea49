#include "longspan/testing/attention_case.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "longspan/attention/saved_attention.h"
#include "longspan/kernels/linear.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/ranks.h"

namespace longspan::testing {
namespace {

/// Returns [S, M, K] and [S, M, V] of x_SJ up_JE.
LatentKeys::Heads heads_of(const at::Tensor& x_SJ, const at::Tensor& up_JE,
                           const AttentionSpec& spec) {
  const at::Tensor heads =
      at::matmul(x_SJ, up_JE)
          .view({x_SJ.size(0), spec.num_kv_heads, spec.key_dim + spec.value_dim});
  return {heads.narrow(2, 0, spec.key_dim).contiguous(),
          heads.narrow(2, spec.key_dim, spec.value_dim).contiguous()};
}

class CaseKeys : public LatentKeys {
 public:
  /// For the spec's kv heads, with the columns of up_JE from `begin` on.
  CaseKeys(const AttentionSpec& spec, at::Tensor up_JE, int64_t begin)
      : spec_(spec), up_JE_(std::move(up_JE)), begin_(begin) {}

  Heads expand(const at::Tensor& x_SJ) const override { return heads_of(x_SJ, own(), spec_); }
  at::Tensor backward(const at::Tensor& x_SJ, const Heads& gradients) const override {
    const c10::AutoGradMode no_graph(false);
    const at::Tensor dheads_SE = at::cat({gradients.k_SMH, gradients.v_SMH}, 2).flatten(1);
    gradient_of(up_JE_).narrow(1, begin_, dheads_SE.size(1)).add_(at::matmul(x_SJ.t(), dheads_SE));
    return at::matmul(dheads_SE, own().t());
  }
  std::shared_ptr<const LatentKeys> of_heads(int64_t begin, int64_t count) const override {
    AttentionSpec some = spec_;
    some.num_kv_heads = count;
    return std::make_shared<CaseKeys>(some, up_JE_, begin_ + begin * width(1));
  }
  std::vector<at::Tensor> parameters() const override { return {up_JE_}; }

 private:
  int64_t width(int64_t num_heads) const { return num_heads * (spec_.key_dim + spec_.value_dim); }
  at::Tensor own() const { return up_JE_.detach().narrow(1, begin_, width(spec_.num_kv_heads)); }

  AttentionSpec spec_;
  at::Tensor up_JE_;
  int64_t begin_;
};

}  // namespace

AttentionCase random_case(const std::vector<int64_t>& document_lengths, int64_t num_heads,
                          int64_t num_kv_heads, int64_t head_dim, uint64_t seed) {
  return random_case(Packing::from_lengths(document_lengths), num_heads, num_kv_heads, head_dim,
                     seed);
}

AttentionCase random_case(const Packing& packing, int64_t num_heads, int64_t num_kv_heads,
                          int64_t head_dim, uint64_t seed) {
  return random_case(packing, plain_attention(num_heads, num_kv_heads, head_dim), seed);
}

AttentionCase random_case(const Packing& packing, const AttentionSpec& spec, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  AttentionCase problem;
  problem.spec = spec;
  problem.packing = packing;
  auto random = [&](int64_t num, int64_t head_dim) {
    return at::randn({problem.packing.num_tokens(), num, head_dim}, generator, at::kDouble);
  };
  problem.q_TNH = random(spec.num_heads, spec.key_dim);
  problem.k_TMH = random(spec.num_kv_heads, spec.key_dim);
  problem.v_TMH = random(spec.num_kv_heads, spec.value_dim);
  problem.dout_TNH = random(spec.num_heads, spec.value_dim);
  if (spec.has_sinks) problem.sinks_N = at::randn({spec.num_heads}, generator, at::kDouble);
  if (spec.latent_dim) {
    const int64_t J = *spec.latent_dim, E = spec.num_kv_heads * (spec.key_dim + spec.value_dim);
    problem.x_TJ = at::randn({problem.packing.num_tokens(), J}, generator, at::kDouble);
    problem.up_JE = at::randn({J, E}, generator, at::kDouble) / std::sqrt(static_cast<double>(J));
    const LatentKeys::Heads heads = heads_of(problem.x_TJ, problem.up_JE, spec);
    problem.k_TMH = heads.k_SMH;
    problem.v_TMH = heads.v_SMH;
  }
  return problem;
}

std::shared_ptr<const LatentKeys> latent_keys(const AttentionSpec& spec, const at::Tensor& up_JE) {
  return std::make_shared<CaseKeys>(spec, up_JE, /*begin=*/0);
}

AttentionSolution solve_plainly(const AttentionCase& problem) {
  auto leaf = [](const at::Tensor& x) { return x.detach().clone().requires_grad_(true); };
  const bool latent = problem.spec.latent_dim.has_value();
  const at::Tensor q = leaf(problem.q_TNH);
  at::Tensor k = leaf(problem.k_TMH), v = leaf(problem.v_TMH), x, up;
  if (latent) {
    x = leaf(problem.x_TJ);
    up = leaf(problem.up_JE);
    const LatentKeys::Heads heads = heads_of(x, up, problem.spec);
    k = heads.k_SMH;
    v = heads.v_SMH;
  }
  const at::Tensor sinks = problem.spec.has_sinks ? leaf(problem.sinks_N) : at::Tensor();
  const int64_t group = q.size(1) / k.size(1);
  const std::vector<Document> documents = problem.packing.documents();
  std::vector<at::Tensor> outs;
  for (int64_t d = 0; d < problem.packing.num_documents(); ++d) {
    const int64_t begin = problem.packing.begin(d), length = problem.packing.length(d);
    auto heads_first = [&](const at::Tensor& x, int64_t repeats) {
      return x.narrow(0, begin, length).repeat_interleave(repeats, 1).transpose(0, 1);
    };
    at::Tensor scores =
        at::matmul(heads_first(q, 1), heads_first(k, group).transpose(1, 2)) * problem.spec.scale;
    if (problem.spec.softcap) {
      scores = *problem.spec.softcap * at::tanh(scores / *problem.spec.softcap);
    }
    at::Tensor unseen = at::ones({length, length}, at::kBool).triu(1);
    for (const auto& [first, end] : documents[d].two_way) {
      unseen.narrow(0, first, end - first).narrow(1, first, end - first).fill_(false);
    }
    at::Tensor positions = at::arange(length, at::kLong);
    for (const auto& [begin, end, subtree_end, parent, depth, shift] : problem.packing.tree(d)) {
      positions.narrow(0, begin, end - begin).sub_(shift);
      if (parent == kNoParent) continue;
      // A branch and its descendants see the tokens before the first branch, and their own.
      const int64_t first = problem.packing.tree(d)[parent].end;
      unseen.narrow(0, begin, subtree_end - begin).narrow(1, first, begin - first).fill_(true);
    }
    if (problem.spec.window) {
      unseen = unseen.logical_or(positions.unsqueeze(1) - positions >= *problem.spec.window);
    }
    scores = scores.masked_fill(unseen, -std::numeric_limits<double>::infinity());
    if (sinks.defined()) {
      scores = at::cat({scores, sinks.view({-1, 1, 1}).expand({-1, length, 1})}, -1);
    }
    const at::Tensor weights = at::softmax(scores, -1).narrow(2, 0, length);
    outs.push_back(at::matmul(weights, heads_first(v, group)).transpose(0, 1));
  }
  const at::Tensor out = at::cat(outs);
  (out * problem.dout_TNH).sum().backward();
  const at::Tensor none;
  return {out.detach(),
          q.grad(),
          latent ? none : k.grad(),
          latent ? none : v.grad(),
          sinks.defined() ? sinks.grad() : none,
          latent ? x.grad() : none,
          latent ? up.grad() : none};
}

namespace {

Traffic difference(const Traffic& after, const Traffic& before) {
  return {after.all_to_all - before.all_to_all, after.all_gather - before.all_gather,
          after.reduce_scatter - before.reduce_scatter, after.shift - before.shift,
          after.sum - before.sum};
}

DistributedSolution unsolved(const AttentionCase& problem, at::ScalarType dtype) {
  auto unset = [&](const at::Tensor& x) {
    return at::full_like(x, std::numeric_limits<double>::quiet_NaN(), x.options().dtype(dtype));
  };
  DistributedSolution solution;
  solution.out_TNH = unset(problem.dout_TNH);
  solution.dq_TNH = unset(problem.q_TNH);
  if (problem.spec.latent_dim) {
    solution.dx_TJ = unset(problem.x_TJ);
    solution.dup_JE = at::zeros_like(problem.up_JE, dtype);
  } else {
    solution.dk_TMH = unset(problem.k_TMH);
    solution.dv_TMH = unset(problem.v_TMH);
  }
  if (problem.spec.has_sinks) solution.dsinks_N = at::zeros_like(problem.sinks_N);
  return solution;
}

// Solves one rank's part.
void solve_share(const AttentionCase& problem, const Mesh& mesh, SequenceParallel& attention,
                 const DistributedTask& task, std::mutex& mutex, DistributedSolution& whole) {
  const at::ScalarType dtype = task.dtype;
  const TokenOrder order = attention.token_order(problem.packing);
  const at::Tensor index =
      at::tensor(at::ArrayRef<int64_t>(order.index), at::TensorOptions(at::kLong));
  auto share = [&](const at::Tensor& x, double scale_of_padding) {
    at::Tensor local = x.index_select(0, index.clamp_min(0));
    const at::Tensor padding =
        x.dim() == 2 ? (index < 0).view({-1, 1}) : (index < 0).view({-1, 1, 1});
    return at::where(padding, at::randn_like(local) * scale_of_padding, local).to(dtype);
  };
  const at::Tensor q = share(problem.q_TNH, 10).requires_grad_(true);
  const bool latent = problem.spec.latent_dim.has_value();
  at::Tensor k, v, x, up;
  if (latent) {
    x = share(problem.x_TJ, 10).requires_grad_(true);
    up = problem.up_JE.to(dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_(true);
  } else {
    k = share(problem.k_TMH, 10).requires_grad_(true);
    v = share(problem.v_TMH, 10).requires_grad_(true);
  }
  at::Tensor sinks;
  if (problem.spec.has_sinks) {
    sinks = problem.sinks_N.to(dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_(true);
  }
  // The loss does not include padding: its gradient is 0 there.
  const at::Tensor dout = share(problem.dout_TNH, 0);
  const Traffic before = sequence_traffic(mesh);
  auto attend = [&](AttentionCheckpoint checkpoint) {
    if (!latent) {
      return attention.attend({q, k, v, sinks}, problem.spec, order.packing, checkpoint);
    }
    return attention.attend_latent(q, x, latent_keys(problem.spec, up), problem.spec, order.packing,
                                   checkpoint);
  };
  at::Tensor out, values;
  if (task.checkpointing) {
    SavedAttention saved;
    {
      c10::AutoGradMode no_gradients(false);
      values = attend(AttentionCheckpoint::saving(saved));
    }
    saved.output_is_known = task.output_is_known;
    out = attend(AttentionCheckpoint::replaying(saved));
    TORCH_CHECK(saved.results.empty(), "something kept was not replayed");
  } else {
    out = attend({});
  }
  if (!task.output_is_known) values = out;
  out.backward(dout);

  const std::lock_guard lock(mutex);
  whole.traffic += difference(sequence_traffic(mesh), before);
  whole.padded = order.packing;
  const at::Tensor real = (index >= 0).nonzero().squeeze(1);
  const at::Tensor places = index.index_select(0, real);
  auto put = [&](at::Tensor& x, const at::Tensor& local) {
    x.index_copy_(0, places, local.detach().index_select(0, real));
  };
  put(whole.out_TNH, values);
  put(whole.dq_TNH, q.grad());
  if (latent) {
    put(whole.dx_TJ, x.grad());
    whole.dup_JE.add_(up.grad());
  } else {
    put(whole.dk_TMH, k.grad());
    put(whole.dv_TMH, v.grad());
  }
  if (sinks.defined()) whole.dsinks_N.add_(sinks.grad());
}

}  // namespace

std::vector<DistributedSolution> solve_all(const std::vector<DistributedTask>& tasks) {
  std::vector<DistributedSolution> solutions;
  std::map<std::vector<int>, std::vector<size_t>> by_groups;
  for (const DistributedTask& task : tasks) {
    const ParallelPlan& plan = task.plan;
    const bool one_group = (plan.ulysses_size == 1 || plan.ring_size == 1) &&
                           plan.window_size == 1 && plan.num_head_slices == 1;
    by_groups[one_group ? std::vector{plan.sequence_size}
                        : std::vector{plan.sequence_size, plan.ulysses_size, plan.window_size,
                                      plan.num_head_slices}]
        .push_back(solutions.size());
    solutions.push_back(unsolved(*task.problem, task.dtype));
  }
  for (const auto& [groups, indices] : by_groups) {
    std::mutex mutex;
    run_ranks(tasks[indices[0]].plan, [&](Mesh mesh) {
      if (groups.size() == 1) mesh.ring = mesh.ulysses = mesh.windows = mesh.sequence;
      for (const size_t i : indices) {
        const DistributedTask& task = tasks[i];
        const auto attention = make_attention(task.plan, mesh, cpu_block_kernel());
        solve_share(*task.problem, mesh, *attention, task, mutex, solutions[i]);
      }
    });
  }
  return solutions;
}

std::vector<DistributedSolution> solve_distributed(const std::vector<AttentionCase>& problems,
                                                   const ParallelPlan& plan, at::ScalarType dtype,
                                                   bool checkpointing) {
  std::vector<DistributedTask> tasks;
  for (const AttentionCase& problem : problems) {
    tasks.push_back({&problem, plan, dtype, checkpointing});
  }
  return solve_all(tasks);
}

DistributedSolution solve_distributed(const AttentionCase& problem, const ParallelPlan& plan,
                                      at::ScalarType dtype, bool checkpointing) {
  return solve_all({{&problem, plan, dtype, checkpointing}})[0];
}

}  // namespace longspan::testing
