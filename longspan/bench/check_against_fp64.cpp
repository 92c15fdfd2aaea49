#include "longspan/bench/check_against_fp64.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

namespace longspan {
namespace {

constexpr double kMostFlops = 1e11;  // some seconds in fp64
constexpr uint64_t kCheckSeed = 99;

double attention_flops(const ProblemShape& shape, const std::vector<int64_t>& lengths) {
  double pairs = 0;
  for (const int64_t length : lengths) {
    pairs += static_cast<double>(length) * (static_cast<double>(length) + 1) / 2;
  }
  const FlopCost pair = pair_flops_of(shape.attention());
  return pairs * static_cast<double>(shape.num_heads * (pair.forward + pair.backward));
}

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual.to(at::kDouble).cpu() - expected).norm() / expected.norm()).item<double>();
}

// Returns all ranks' local rows in the order of the unpadded row. Collective.
at::Tensor whole_row(const at::Tensor& local, const TokenOrder& order, int64_t num_tokens,
                     const Group& world) {
  const at::Tensor index =
      at::tensor(at::ArrayRef<int64_t>(order.index), at::TensorOptions(at::kLong));
  const at::Tensor rows = world.all_gather(local.detach().contiguous()).wait().cpu();
  const at::Tensor places = world.all_gather(index.to(local.device())).wait().cpu();
  const at::Tensor real = (places >= 0).nonzero().squeeze(1);
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = num_tokens;
  // NaN marks a token that no rank holds.
  at::Tensor whole = at::full(sizes, std::nan(""), rows.options());
  whole.index_copy_(0, places.index_select(0, real), rows.index_select(0, real));
  return whole;
}

ProblemShape in_fp64(ProblemShape shape) {
  shape.dtype = at::kDouble;
  shape.device = at::Device(at::kCPU);
  shape.checkpointing = false;
  return shape;
}

}  // namespace

CheckAgainstFp64::CheckAgainstFp64(const ProblemShape& shape,
                                   const std::vector<int64_t>& document_lengths, const Group& world,
                                   UseThreads use_threads, int num_threads)
    : shape_(shape), document_lengths_(document_lengths), world_(world) {
  const double share = std::sqrt(kMostFlops / attention_flops(shape, document_lengths));
  for (int64_t& length : document_lengths_) {
    if (share >= 1) break;
    length = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(length) * share));
  }
  if (world.rank() == 0) {
    const ThreadsOfPass threads(use_threads, num_threads);
    const auto attention = make_local(cpu_block_kernel());
    const Packing row = Packing::from_lengths(document_lengths_);
    const TokenOrder order = attention->token_order(row);
    const ProblemShape exact = in_fp64(shape);
    AttentionProblem problem(exact, row, order,
                             ProblemInputs::random(exact, row.num_tokens(), kCheckSeed));
    out_ = problem.forward(*attention);
    problem.backward(*attention);
    gradients_ = problem.gradients();
  }
  world.barrier();
}

void CheckAgainstFp64::compare(SequenceParallel& attention, bool alone,
                               MethodMeasurement& measured) const {
  const Group together = alone ? Group() : world_;
  if (alone && world_.rank() != 0) return;
  const Packing row = Packing::from_lengths(document_lengths_);
  const TokenOrder order = attention.token_order(row);
  const ProblemInputs whole = ProblemInputs::random(shape_, row.num_tokens(), kCheckSeed);
  AttentionProblem problem(shape_, row, order, whole.share(order));
  const at::Tensor out = problem.forward(attention);
  problem.backward(attention);
  const auto gather = [&](const at::Tensor& local) {
    return whole_row(local, order, row.num_tokens(), together);
  };
  const at::Tensor out_T = gather(out);
  const ProblemGradients local = problem.gradients();
  std::vector<at::Tensor> gradients, expected = gradients_.tokens;
  for (const at::Tensor& x : local.tokens) gradients.push_back(gather(x));
  for (const at::Tensor& x : local.parameters) {
    at::Tensor sum = x.to(at::kDouble);
    together.sum_(sum);
    gradients.push_back(sum);
  }
  if (world_.rank() != 0) return;
  expected.insert(expected.end(), gradients_.parameters.begin(), gradients_.parameters.end());
  measured.output_error = relative_error(out_T, out_);
  for (size_t i = 0; i < gradients.size(); ++i) {
    measured.gradient_errors.push_back(relative_error(gradients[i], expected[i]));
  }
}

}  // namespace longspan
