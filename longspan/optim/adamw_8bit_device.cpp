#include "longspan/optim/adamw_8bit_device.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "longspan/memory/transfer.h"
#include "longspan/optim/block_quantization.h"
#include "longspan/optim/cuda_adamw_8bit.h"

namespace longspan {
namespace {

constexpr int64_t kOfBlock = kQuantizationBlock;

/// The values of a data type, and the midpoints between neighbours.
struct Values {
  Values(bool is_signed, at::Device device) {
    const auto& values = dynamic_values(is_signed);
    values_256 = sent_to(at::tensor(at::ArrayRef<float>(values.data(), values.size())), device);
    middles_255 = (values_256.slice(0, 0, 255) + values_256.slice(0, 1, 256)) * 0.5;
  }
  at::Tensor values_256, middles_255;
};

at::Tensor restored_on_device(const at::Tensor& codes, const at::Tensor& scales,
                              const Values& type) {
  const at::Tensor scale = scales.repeat_interleave(kOfBlock).narrow(0, 0, codes.numel());
  return type.values_256.index_select(0, codes.to(at::kInt)) * scale;
}

void quantize_on_device(const at::Tensor& x, at::Tensor codes, at::Tensor scales,
                        const Values& type) {
  const int64_t num_blocks = scales.numel();
  const at::Tensor padded =
      at::constant_pad_nd(x, {0, num_blocks * kOfBlock - x.numel()}).view({num_blocks, kOfBlock});
  const at::Tensor place = padded.abs().argmax(1, /*keepdim=*/true);
  const at::Tensor scale = padded.gather(1, place);
  scales.copy_(scale.squeeze(1));
  const at::Tensor unit = padded / scale.masked_fill(scale.eq(0), 1.0);
  codes.copy_(at::bucketize(unit, type.middles_255).flatten().narrow(0, 0, x.numel()));
}

}  // namespace

void update_8bit_on_gpu(const Moments8bit& moments, const at::Tensor& gradient_n,
                        const at::Tensor& values_n, const Factors8bit& factors) {
  if (cuda_rows::update_8bit(moments, gradient_n, values_n, factors)) return;
  update_8bit_composed(moments, gradient_n, values_n, factors);
}

void update_8bit_composed(const Moments8bit& moments, const at::Tensor& gradient_n,
                          const at::Tensor& values_n, const Factors8bit& factors,
                          int64_t numbers_at_once) {
  TORCH_CHECK(numbers_at_once % kOfBlock == 0, "8-bit states: parts are of whole blocks");
  const Values of_first(/*is_signed=*/true, values_n.device()),
      of_second(/*is_signed=*/false, values_n.device());
  for (int64_t begin = 0; begin < values_n.numel(); begin += numbers_at_once) {
    const int64_t size = std::min(numbers_at_once, values_n.numel() - begin);
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, size); };
    const auto blocks = [&](const at::Tensor& x) {
      return x.narrow(0, begin / kOfBlock, (size + kOfBlock - 1) / kOfBlock);
    };
    const at::Tensor g = part(gradient_n).to(at::kFloat), values = part(values_n);
    const at::Tensor m =
        restored_on_device(part(moments.first_codes), blocks(moments.first_scales), of_first)
            .mul_(factors.beta1)
            .add_(g, 1 - factors.beta1);
    const at::Tensor v =
        restored_on_device(part(moments.second_codes), blocks(moments.second_scales), of_second)
            .mul_(factors.beta2)
            .addcmul_(g, g, 1 - factors.beta2);
    const at::Tensor denominator = v.sqrt().div_(factors.root_correction2).add_(factors.epsilon);
    values.copy_(values.to(at::kFloat).mul(factors.decay).addcdiv_(m, denominator, -factors.rate));
    quantize_on_device(m, part(moments.first_codes), blocks(moments.first_scales), of_first);
    quantize_on_device(v, part(moments.second_codes), blocks(moments.second_scales), of_second);
  }
}

}  // namespace longspan
