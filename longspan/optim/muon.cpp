// Muon (https://kellerjordan.github.io/posts/muon), as torch.optim.Muon with its defaults, or with
// adjust_lr_fn: match_rms_adamw: layers' matrices move by their orthogonalized momentum, everything
// else by AdamW.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "longspan/kernels/storage_type.h"
#include "longspan/optim/adamw.h"
#include "longspan/optim/optimizer_job.h"
#include "longspan/registers/update_rule.h"

namespace longspan {
namespace {

constexpr double kMomentum = 0.95;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;  // polynomial a x + b x^3 + c x^5
constexpr int kIterations = 5;
constexpr double kEpsilon = 1e-7;
constexpr std::string_view kNames[] = {"muon", "muon_match_rms_adamw"};

/// Returns the factor of a matrix's learning rate.
double factor_of_rate(std::string_view name, const at::Tensor& matrix) {
  const auto height = static_cast<double>(matrix.size(0)),
             width = static_cast<double>(matrix.size(1));
  return name == kNames[0] ? std::sqrt(std::max(1.0, height / width))
                           : 0.2 * std::sqrt(std::max(height, width));
}

/// True for projections and LoRA's matrices, each by itself; false for embeddings and heads.
bool is_matrix_of_layer(const ParameterSpec& parameter) {
  return parameter.role == ParameterRole::kProjection ||
         (is_lora(parameter.role) && parameter.shape.size() == 2);
}

/// Returns approximately the nearest matrix with orthonormal rows (or columns, if there are fewer),
/// by the Newton-Schulz iteration in bf16.
at::Tensor orthogonalized(const at::Tensor& matrix) {
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  if (is_tall) x = x.t();
  x.div_(x.norm().clamp_min(kEpsilon));
  for (int i = 0; i < kIterations; ++i) {
    const at::Tensor gram = x.matmul(x.t());
    const at::Tensor update = at::addmm(gram, gram, gram, /*beta=*/kB, /*alpha=*/kC);
    x = at::addmm(x, update, x, /*beta=*/kA);
  }
  return is_tall ? x.t() : x;
}

class Muon : public Optimizer {
 public:
  explicit Muon(const OptimizerJob& job)
      : name_(job.config.optim),
        over_whole_matrices_(job.over_whole_matrices),
        weight_decay_(job.config.weight_decay) {
    const c10::NoGradGuard no_grad;
    std::vector<ParameterShard> others;
    for (const ParameterShard& shard : job.shards) {
      const bool is_matrix = is_matrix_of_layer(shard.spec);
      places_.emplace_back(is_matrix, is_matrix ? matrices_.size() : others.size());
      if (!is_matrix) {
        others.push_back(shard);
        continue;
      }
      const at::Tensor values = shard.values.detach();
      matrices_.push_back(
          {shard, job.allocate ? job.allocate(values).zero_() : at::zeros_like(values)});
    }
    others_ = std::make_unique<AdamW>(others, adamw_options_of(job.config), job.allocate);
  }

  void step(double learning_rate) override {
    const c10::NoGradGuard no_grad;
    others_->step(learning_rate);
    over_whole_matrices_(
        {.dtype = at::kBFloat16,
         .make = [&](size_t i) { return direction(matrices_[places_.at(i).second]); },
         .use =
             [&](size_t i, const at::Tensor& whole) {
               move(matrices_[places_.at(i).second], whole, learning_rate);
             }});
  }

  std::vector<StateSource> state() const override {
    const std::vector<StateSource> others = others_->state();
    std::vector<StateSource> sources;
    for (const auto& [is_matrix, place] : places_) {
      if (!is_matrix) {
        sources.push_back(others[place]);
        continue;
      }
      const Matrix& m = matrices_[place];
      const auto dtype = arithmetic_dtype(m.momentum.scalar_type());
      const auto make = [&m, dtype] {
        return StateShard{m.shard.parameter,
                          m.shard.begin,
                          m.shard.end,
                          m.num_steps,
                          {{"momentum_buffer", m.momentum.flatten().to(dtype)}}};
      };
      sources.push_back(
          {m.shard.parameter, m.shard.begin, m.shard.end, {{"momentum_buffer", dtype}}, make});
    }
    return sources;
  }

  void load_state(size_t i, const StateShard& shard) override {
    const c10::NoGradGuard no_grad;
    const auto& [is_matrix, place] = places_.at(i);
    if (!is_matrix) return others_->load_state(place, shard);
    Matrix& m = matrices_[place];
    require_same_run(shard, m.shard);
    m.momentum.copy_(shard.tensors.at("momentum_buffer").view(m.momentum.sizes()));
    m.num_steps = shard.num_steps;
    load_master(shard, m.shard);
  }

 private:
  /// This rank's part of a matrix.
  struct Matrix {
    ParameterShard shard;
    at::Tensor momentum;  // in the values' shape
    int64_t num_steps = 0;
  };

  /// Adds the gradient to the momentum. Returns the matrix to orthogonalize, with Nesterov's
  /// look-ahead.
  static at::Tensor direction(Matrix& m) {
    if (!m.shard.values.grad().defined()) return at::zeros_like(m.momentum);
    const at::Tensor gradient = m.shard.values.grad().to(m.momentum.device());
    m.momentum.lerp_(gradient, 1 - kMomentum);
    m.num_steps += 1;
    return gradient.lerp(m.momentum, kMomentum);
  }

  void move(Matrix& m, const at::Tensor& whole, double learning_rate) const {
    at::Tensor values = m.shard.values.detach();
    if (!m.shard.values.grad().defined()) return;
    const at::Tensor mine = orthogonalized(whole)
                                .reshape({-1})
                                .narrow(0, m.shard.begin, m.shard.end - m.shard.begin)
                                .view(values.sizes())
                                .to(values.device());
    const double decay = m.shard.spec.decays ? weight_decay_ : 0.0;
    const double rate = learning_rate * m.shard.rate_factor;
    values.mul_(1 - rate * decay);
    values.add_(mine, -rate * factor_of_rate(name_, whole));
  }

  std::string name_;
  OverWholeMatrices over_whole_matrices_;
  double weight_decay_;
  std::vector<std::pair<bool, size_t>> places_;  // in the order of state(): is a matrix, index
  std::vector<Matrix> matrices_;
  std::unique_ptr<AdamW> others_;
};

/// One momentum for a matrix, AdamW's two moments for the rest: in the dtype of the values in
/// memory, in fp32 in files.
int64_t numbers_of(const HeldParameter& parameter) {
  return (is_matrix_of_layer(parameter.spec) ? 1 : 2) * parameter.spec.num_elements();
}
int64_t state_bytes(const HeldParameter& parameter) {
  return parameter.element_bytes * numbers_of(parameter);
}
int64_t saved_bytes(const HeldParameter& parameter) { return 4 * numbers_of(parameter); }

/// The direction in fp32 and bf16, the iteration's matrix before and after a step, and two square
/// matrices of its shorter side.
int64_t working_bytes(const HeldParameter& parameter, bool /*cuda*/) {
  if (!is_matrix_of_layer(parameter.spec) || parameter.spec.shape.size() != 2) return 0;
  const int64_t side = std::min(parameter.spec.shape[0], parameter.spec.shape[1]);
  return (4 + 2 + 2 + 2) * parameter.spec.num_elements() + 2 * 2 * side * side;
}

std::unique_ptr<Optimizer> make(const OptimizerJob& job) { return std::make_unique<Muon>(job); }

}  // namespace

extern const UpdateRule kMuon{
    .names = kNames,
    .help =
        "muon: matrices of layers by orthogonalized momentum, the rest by AdamW; "
        "muon_match_rms_adamw: the same, with another factor of the matrices' learning rate, 0.2 x "
        "sqrt(longer side)",
    .wants_whole = is_matrix_of_layer,
    .state_bytes = state_bytes,
    .saved_bytes = saved_bytes,
    .working_bytes = working_bytes,
    .make = make,
};

}  // namespace longspan
