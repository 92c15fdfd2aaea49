#include "longspan/optim/adamw_8bit.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "longspan/optim/adamw_8bit_device.h"
#include "longspan/optim/block_quantization.h"
#include "longspan/optim/optimizer_job.h"
#include "longspan/registers/update_rule.h"

namespace longspan {
namespace {

constexpr int64_t kBlock = kQuantizationBlock;

bool is_quantized(const ParameterShard& shard) {
  return std::max(shard.spec.num_elements(), shard.end) >= AdamW8bit::kMinQuantized;
}

/// Updates one block in fp32, whatever the dtype of the values.
template <typename S>
void update_block(S* values, const S* gradients, int64_t n, float* first, float* second,
                  const Factors8bit& factors) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = static_cast<float>(gradients[i]);
    first[i] = factors.beta1 * first[i] + (1 - factors.beta1) * g;
    second[i] = factors.beta2 * second[i] + (1 - factors.beta2) * g * g;
    const float denominator = std::sqrt(second[i]) / factors.root_correction2 + factors.epsilon;
    const float value = static_cast<float>(values[i]) * factors.decay;
    values[i] = static_cast<S>(value - factors.rate * first[i] / denominator);
  }
}

/// Calls body(begin, n, block index) for all blocks, in parallel.
template <typename Body>
void for_blocks(int64_t numel, const Body& body) {
  at::parallel_for(0, (numel + kBlock - 1) / kBlock, 64, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b)
      body(b * kBlock, std::min(kBlock, numel - b * kBlock), b);
  });
}

at::Tensor restored(const at::Tensor& codes, const at::Tensor& scales, bool is_signed) {
  at::Tensor x = at::empty({codes.numel()}, at::kFloat);
  float* to = x.mutable_data_ptr<float>();
  const uint8_t* from = codes.const_data_ptr<uint8_t>();
  const float* scale = scales.const_data_ptr<float>();
  for_blocks(codes.numel(), [&](int64_t begin, int64_t n, int64_t b) {
    restore_block(from + begin, scale[b], n, is_signed, to + begin);
  });
  return x;
}

void quantize(const at::Tensor& x, bool is_signed, at::Tensor& codes, at::Tensor& scales) {
  const at::Tensor plain = x.flatten().to(at::kFloat).contiguous();
  const float* from = plain.const_data_ptr<float>();
  uint8_t* to = codes.mutable_data_ptr<uint8_t>();
  float* scale = scales.mutable_data_ptr<float>();
  for_blocks(codes.numel(), [&](int64_t begin, int64_t n, int64_t b) {
    quantize_block(from + begin, n, is_signed, to + begin, scale + b);
  });
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
  at::Tensor values = q.shard.values.detach().to(device).view({-1});
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
  if (!device.is_cpu()) {
    update_on_device({q.first_codes, q.first_scales, q.second_codes, q.second_scales}, gradient,
                     values, factors);
  } else {
    uint8_t *m = q.first_codes.mutable_data_ptr<uint8_t>(),
            *v = q.second_codes.mutable_data_ptr<uint8_t>();
    float *m_scales = q.first_scales.mutable_data_ptr<float>(),
          *v_scales = q.second_scales.mutable_data_ptr<float>();
    AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, values.scalar_type(), "adamw_8bit", [&] {
      scalar_t* x = values.mutable_data_ptr<scalar_t>();
      const scalar_t* g = gradient.const_data_ptr<scalar_t>();
      for_blocks(values.numel(), [&](int64_t begin, int64_t n, int64_t b) {
        float first[kBlock], second[kBlock];
        restore_block(m + begin, m_scales[b], n, true, first);
        restore_block(v + begin, v_scales[b], n, false, second);
        update_block(x + begin, g + begin, n, first, second, factors);
        quantize_block(first, n, true, m + begin, m_scales + b);
        quantize_block(second, n, false, v + begin, v_scales + b);
      });
    });
  }
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
          {{"exp_avg", restored(q.first_codes.cpu(), q.first_scales.cpu(), true)},
           {"exp_avg_sq", restored(q.second_codes.cpu(), q.second_scales.cpu(), false)}}};
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
    quantize(shard.tensors.at(name).cpu(), is_signed, on_cpu, scales_on_cpu);
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

/// On a GPU, per element: gradient, moments and the root of one in fp32; to quantize a moment also
/// its padded copy in units of the scales, and the codes in int64.
int64_t working_bytes(const HeldParameter& parameter, bool cuda) {
  constexpr int64_t kBytes = 4 + 2 * 4 + 4 + 4 + 4 + 8;
  const bool whole = !cuda || parameter.spec.num_elements() < AdamW8bit::kMinQuantized;
  return whole ? 0 : kBytes * std::min(parameter.spec.num_elements(), kNumbersAtOnce8bit);
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
    .working_bytes = working_bytes,
    .make = make,
};

}  // namespace longspan
