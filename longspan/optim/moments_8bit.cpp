#include "longspan/optim/moments_8bit.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "longspan/optim/block_quantization.h"

namespace longspan {
namespace {

constexpr int64_t kMomentBlock = kQuantizationBlock;

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
void for_moment_blocks(int64_t numel, const Body& body) {
  at::parallel_for(0, (numel + kMomentBlock - 1) / kMomentBlock, 64,
                   [&](int64_t first, int64_t last) {
                     for (int64_t b = first; b < last; ++b) {
                       const int64_t begin = b * kMomentBlock;
                       body(begin, std::min(kMomentBlock, numel - begin), b);
                     }
                   });
}

}  // namespace

void update_8bit_on_cpu(const Moments8bit& moments, const at::Tensor& gradient_n,
                        const at::Tensor& values_n, const Factors8bit& factors) {
  uint8_t *m = moments.first_codes.mutable_data_ptr<uint8_t>(),
          *v = moments.second_codes.mutable_data_ptr<uint8_t>();
  float *m_scales = moments.first_scales.mutable_data_ptr<float>(),
        *v_scales = moments.second_scales.mutable_data_ptr<float>();
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, values_n.scalar_type(), "adamw_8bit", [&] {
    scalar_t* x = values_n.mutable_data_ptr<scalar_t>();
    const scalar_t* g = gradient_n.const_data_ptr<scalar_t>();
    for_moment_blocks(values_n.numel(), [&](int64_t begin, int64_t n, int64_t b) {
      float first[kMomentBlock], second[kMomentBlock];
      restore_block(m + begin, m_scales[b], n, true, first);
      restore_block(v + begin, v_scales[b], n, false, second);
      update_block(x + begin, g + begin, n, first, second, factors);
      quantize_block(first, n, true, m + begin, m_scales + b);
      quantize_block(second, n, false, v + begin, v_scales + b);
    });
  });
}

at::Tensor restored_moment(const at::Tensor& codes, const at::Tensor& scales, bool is_signed) {
  at::Tensor x = at::empty({codes.numel()}, at::kFloat);
  float* to = x.mutable_data_ptr<float>();
  const uint8_t* from = codes.const_data_ptr<uint8_t>();
  const float* scale = scales.const_data_ptr<float>();
  for_moment_blocks(codes.numel(), [&](int64_t begin, int64_t n, int64_t b) {
    restore_block(from + begin, scale[b], n, is_signed, to + begin);
  });
  return x;
}

void quantize_moment(const at::Tensor& x, bool is_signed, at::Tensor& codes, at::Tensor& scales) {
  const at::Tensor plain = x.flatten().to(at::kFloat).contiguous();
  const float* from = plain.const_data_ptr<float>();
  uint8_t* to = codes.mutable_data_ptr<uint8_t>();
  float* scale = scales.mutable_data_ptr<float>();
  for_moment_blocks(codes.numel(), [&](int64_t begin, int64_t n, int64_t b) {
    quantize_block(from + begin, n, is_signed, to + begin, scale + b);
  });
}

}  // namespace longspan
