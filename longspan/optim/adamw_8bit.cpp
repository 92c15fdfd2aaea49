#include "longspan/optim/adamw_8bit.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "longspan/optim/adamw_8bit_device.h"
#include "longspan/optim/block_quantization.h"
#include "longspan/optim/moments_8bit.h"
#include "longspan/optim/optimizer_job.h"
#include "longspan/registers/update_rule.h"

namespace longspan {
namespace {

constexpr int64_t kBlock = kQuantizationBlock;

bool is_quantized(const ParameterShard& shard) {
  return std::max(shard.spec.num_elements(), shard.end) >= AdamW8bit::kMinQuantized;
}

}  // namespace

AdamW8bit::AdamW8bit(const std::vector<ParameterShard>& shards, const AdamWOptions& options,
                     const AllocateLike& allocate)
    : options_(options) {
  const c10::NoGradGuard no_grad;
  std::vector<ParameterShard> small;
  for (const ParameterShard& shard : shards) {
    const bool quantizes = is_quantized(shard);
    places_.emplace_back(quantizes, quantizes ? quantized_.size() : small.size());
    if (!quantizes) {
      small.push_back(shard);
      continue;
    }
    const int64_t numel = shard.values.numel();
    const auto zeros = [&](int64_t n, at::ScalarType dtype) {
      // `allocate` reads only the shape and dtype of `like`.
      const at::Tensor like = at::empty({1}, shard.values.options().dtype(dtype)).expand({n});
      return allocate ? allocate(like).zero_() : at::zeros({n}, like.options());
    };
    const int64_t num_blocks = (numel + kBlock - 1) / kBlock;
    Quantized quantized{shard, zeros(numel, at::kByte), zeros(numel, at::kByte),
                        zeros(num_blocks, at::kFloat), zeros(num_blocks, at::kFloat)};
    quantized_.push_back(std::move(quantized));
  }
  small_ = std::make_unique<AdamW>(small, options, allocate);
}

void AdamW8bit::step(double learning_rate) {
  const c10::NoGradGuard no_grad;
  small_->step(learning_rate);
  for (Quantized& quantized : quantized_) {
    if (!quantized.shard.values.grad().defined()) continue;
    update(quantized, learning_rate * quantized.shard.rate_factor);
  }
}

void AdamW8bit::update(Quantized& q, double learning_rate) const {
  const auto device = q.first_codes.device();
  const at::Tensor gradient = q.shard.values.grad().to(device).flatten();
  const at::Tensor values = q.shard.values.detach().to(device).view({-1});
  q.num_steps += 1;
  const double steps = static_cast<double>(q.num_steps);
  const double decay = q.shard.spec.decays ? options_.weight_decay : 0.0;
  const Factors8bit factors{
      static_cast<float>(options_.beta1),
      static_cast<float>(options_.beta2),
      static_cast<float>(options_.epsilon),
      static_cast<float>(1 - learning_rate * decay),
      static_cast<float>(learning_rate / (1 - std::pow(options_.beta1, steps))),
      static_cast<float>(std::sqrt(1 - std::pow(options_.beta2, steps)))};
  const Moments8bit moments{q.first_codes, q.first_scales, q.second_codes, q.second_scales};
  (device.is_cpu() ? update_8bit_on_cpu : update_8bit_on_gpu)(moments, gradient, values, factors);
  if (q.shard.values.device() != device) {
    q.shard.values.detach().copy_(values.view(q.shard.values.sizes()));
  }
}

std::vector<StateSource> AdamW8bit::state() const {
  const std::vector<StateSource> small = small_->state();
  std::vector<StateSource> sources;
  for (const auto& [is_quantized, place] : places_) {
    if (!is_quantized) {
      sources.push_back(small[place]);
      continue;
    }
    const Quantized& q = quantized_[place];
    const auto make = [&q] {
      return StateShard{
          q.shard.parameter,
          q.shard.begin,
          q.shard.end,
          q.num_steps,
          {{"exp_avg", restored_moment(q.first_codes.cpu(), q.first_scales.cpu(), true)},
           {"exp_avg_sq", restored_moment(q.second_codes.cpu(), q.second_scales.cpu(), false)}}};
    };
    sources.push_back({q.shard.parameter,
                       q.shard.begin,
                       q.shard.end,
                       {{"exp_avg", at::kFloat}, {"exp_avg_sq", at::kFloat}},
                       make});
  }
  return sources;
}

void AdamW8bit::load_state(size_t i, const StateShard& shard) {
  const c10::NoGradGuard no_grad;
  const auto& [is_quantized, place] = places_.at(i);
  if (!is_quantized) return small_->load_state(place, shard);
  Quantized& q = quantized_[place];
  require_same_run(shard, q.shard);
  q.num_steps = shard.num_steps;
  const auto load = [&](const char* name, bool is_signed, at::Tensor& codes, at::Tensor& scales) {
    at::Tensor on_cpu = codes.cpu(), scales_on_cpu = scales.cpu();
    quantize_moment(shard.tensors.at(name).cpu(), is_signed, on_cpu, scales_on_cpu);
    codes.copy_(on_cpu);
    scales.copy_(scales_on_cpu);
  };
  load("exp_avg", true, q.first_codes, q.first_scales);
  load("exp_avg_sq", false, q.second_codes, q.second_scales);
  load_master(shard, q.shard);
}

namespace {

constexpr std::string_view kNames[] = {"adamw_8bit", "adamw_bnb_8bit"};

/// Two moments of one byte per element; scales and small parameters are negligible. Files hold them
/// restored.
int64_t state_bytes(const HeldParameter& parameter) { return 2 * parameter.spec.num_elements(); }
int64_t saved_bytes(const HeldParameter& parameter) {
  return 2 * 4 * parameter.spec.num_elements();
}

std::unique_ptr<Optimizer> make(const OptimizerJob& job) {
  return std::make_unique<AdamW8bit>(job.shards, adamw_options_of(job.config), job.allocate);
}

}  // namespace

extern const UpdateRule kAdamW8bit{
    .names = kNames,
    .help = "8bit: its moments in 8 bits each",
    .wants_whole = wants_nothing_whole,
    .state_bytes = state_bytes,
    .saved_bytes = saved_bytes,
    .working_bytes = works_in_place,
    .make = make,
};

}  // namespace longspan
