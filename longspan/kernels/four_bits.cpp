#include "longspan/kernels/four_bits.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "longspan/kernels/cuda_packed.h"

namespace longspan {
namespace {

constexpr int64_t kBlocksPerTask = 512;
/// Bytes that are unpacked at once by ATen's operators.
constexpr int64_t kChunkBytes = int64_t{1} << 20;
/// Smallest scale by which a block is divided.
constexpr float kLeastScale = 1e-38f;

using Table = std::array<float, 16>;

/// The numbers of the codes (QLoRA, appendix E; fp4: a code's bits are a sign and a number of
/// thirds of the block's scale).
Table numbers_of(FourBitValues values) {
  if (values == FourBitValues::kNf4) {
    return {-1.0f,
            -0.6961928009986877f,
            -0.5250730514526367f,
            -0.39491748809814453f,
            -0.28444138169288635f,
            -0.18477343022823334f,
            -0.09105003625154495f,
            0.0f,
            0.07958029955625534f,
            0.16093020141124725f,
            0.24611230194568634f,
            0.33791524171829224f,
            0.44070982933044434f,
            0.5626170039176941f,
            0.7229568362236023f,
            1.0f};
  }
  constexpr float kTwelfths[8] = {0.0f, 0.0625f, 8.0f, 12.0f, 4.0f, 6.0f, 2.0f, 3.0f};
  Table table{};
  for (size_t i = 0; i < 8; ++i) {
    table[i] = kTwelfths[i] / 12.0f;
    table[i + 8] = -table[i];
  }
  return table;
}

/// The codes in the order of their numbers, and the middles of neighbouring numbers.
struct Rounding {
  std::array<uint8_t, 16> codes{};
  std::array<float, 15> middles{};

  explicit Rounding(const Table& numbers) {
    std::iota(codes.begin(), codes.end(), uint8_t{0});
    std::ranges::stable_sort(codes, {}, [&](uint8_t code) { return numbers[code]; });
    for (size_t i = 0; i < middles.size(); ++i) {
      middles[i] = (numbers[codes[i]] + numbers[codes[i + 1]]) / 2.0f;
    }
  }
  /// A number in the middle goes to the smaller neighbour.
  uint8_t code_of(float x) const {
    int place = 0;
    for (const float middle : middles) place += x > middle ? 1 : 0;
    return codes[static_cast<size_t>(place)];
  }
};

/// The 256 numbers of the dynamic data type (arXiv 2110.02861) as torch computes them in
/// bitsandbytes, ascending.
const std::array<float, 256>& scale_numbers() {
  static const std::array<float, 256> numbers = [] {
    constexpr int kExponents = 7;
    std::array<float, 256> all{};
    size_t n = 0;
    all[n++] = 0.0f;
    all[n++] = 1.0f;
    for (int i = 0; i < kExponents; ++i) {
      const int64_t count = int64_t{1} << i;
      const at::Tensor edges = at::linspace(0.1, 1.0, count + 1, at::kFloat);
      const at::Tensor middles = (edges.narrow(0, 0, count) + edges.narrow(0, 1, count))
                                     .div_(2.0)
                                     .mul_(std::pow(10.0, i - (kExponents - 1)));
      for (int64_t k = 0; k < count; ++k) {
        all[n++] = middles.const_data_ptr<float>()[k];
        all[n++] = -middles.const_data_ptr<float>()[k];
      }
    }
    std::ranges::sort(all);
    return all;
  }();
  return numbers;
}

/// A scale in [-1, 1] is first rounded to one of this many places, then to the nearest number.
constexpr int64_t kPlaces = 65536;

const std::vector<uint8_t>& scale_codes() {
  static const std::vector<uint8_t> codes = [] {
    const std::array<float, 256>& numbers = scale_numbers();
    std::vector<uint8_t> all(kPlaces);
    for (int64_t k = 0; k < kPlaces; ++k) {
      const auto x = static_cast<float>(static_cast<double>(k) * 2.0 / (kPlaces - 1) - 1.0);
      const auto above = std::ranges::lower_bound(numbers, x);
      const auto i = static_cast<size_t>(above - numbers.begin());
      const bool lower = i == numbers.size() ||
                         (i > 0 && !(std::abs(numbers[i] - x) < std::abs(x - numbers[i - 1])));
      all[static_cast<size_t>(k)] = static_cast<uint8_t>(lower ? i - 1 : i);
    }
    return all;
  }();
  return codes;
}

/// Stores the scales in 8 bits, less their mean. kFourBitScales of them share a scale.
void pack_scales(const at::Tensor& scales, const FourBitLayout& layout, uint8_t* packed) {
  const at::Tensor mean = scales.mean(), apart = scales - mean;
  std::memcpy(packed + layout.mean, mean.const_data_ptr(), sizeof(float));
  const float* x = apart.const_data_ptr<float>();
  auto* group_scales = reinterpret_cast<float*>(packed + layout.group_scales);
  const std::vector<uint8_t>& codes = scale_codes();
  for (int64_t some = 0; some < layout.num_groups; ++some) {
    const int64_t begin = some * kFourBitScales,
                  end = std::min(begin + kFourBitScales, layout.num_blocks);
    float largest = 0.0f;
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
    group_scales[some] = largest;
    const float factor = 1.0f / largest;
    for (int64_t i = begin; i < end; ++i) {
      const float place = (std::clamp(x[i] * factor, -1.0f, 1.0f) + 1.0f) * 32767.5f + 0.5f;
      packed[layout.scales + i] = largest == 0.0f ? 0 : codes[static_cast<size_t>(place)];
    }
  }
}

template <typename T>
void pack_blocks(const Rounding& rounding, const T* values, int64_t num_elements, uint8_t* codes,
                 float* scales) {
  const int64_t num_blocks = (num_elements + kFourBitBlock - 1) / kFourBitBlock;
  at::parallel_for(0, num_blocks, kBlocksPerTask, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kFourBitBlock,
                    size = std::min(kFourBitBlock, num_elements - begin);
      std::array<float, kFourBitBlock> x{};
      float largest = 0.0f;
      for (int64_t i = 0; i < size; ++i) {
        x[i] = static_cast<float>(values[begin + i]);
        largest = std::max(largest, std::abs(x[i]));
      }
      const float divisor = std::max(largest, kLeastScale);
      const bool whole = size == kFourBitBlock;
      scales[block] = whole ? largest : divisor;
      // bitsandbytes multiplies whole blocks and divides the last, shorter one.
      const float factor = 1.0f / divisor;
      for (int64_t i = 0; i < size; ++i) {
        x[i] = std::clamp(whole ? x[i] * factor : x[i] / divisor, -1.0f, 1.0f);
      }
      for (int64_t i = 0; i < size; i += 2) {
        codes[(begin + i) / 2] =
            static_cast<uint8_t>(rounding.code_of(x[i]) << 4 | rounding.code_of(x[i + 1]));
      }
    }
  });
}

/// A packed matrix as bytes of the CPU.
struct PackedBytes {
  const FourBitLayout& layout;
  const uint8_t* bytes;

  float scale(int64_t block) const {
    if (layout.num_groups == 0) {
      return reinterpret_cast<const float*>(bytes + layout.scales)[block];
    }
    const float own = scale_numbers()[bytes[layout.scales + block]],
                of_group = reinterpret_cast<const float*>(
                    bytes + layout.group_scales)[block / kFourBitScales];
    return own * of_group + *reinterpret_cast<const float*>(bytes + layout.mean);
  }
};

template <typename T>
void unpack_blocks(const Table& numbers, const PackedBytes& packed, T* values) {
  const int64_t num_elements = packed.layout.num_elements;
  at::parallel_for(0, packed.layout.num_blocks, kBlocksPerTask, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const float scale = packed.scale(block);
      std::array<T, 16> of_code;
      for (size_t i = 0; i < of_code.size(); ++i) of_code[i] = static_cast<T>(numbers[i] * scale);
      const int64_t begin = block * kFourBitBlock,
                    size = std::min(kFourBitBlock, num_elements - begin);
      const uint8_t* codes = packed.bytes + begin / 2;
      T* y = values + begin;
      for (int64_t i = 0; i + 1 < size; i += 2) {
        y[i] = of_code[codes[i / 2] >> 4];
        y[i + 1] = of_code[codes[i / 2] & 15];
      }
      if (size % 2 != 0) y[size - 1] = of_code[codes[size / 2] >> 4];
    }
  });
}

/// Tables of a device, which are copied there once.
struct DeviceTables {
  at::Tensor pairs;    // [256, 2]: the numbers of a byte's two codes
  at::Tensor scales;   // [256]
  at::Tensor numbers;  // [16]: of the codes
};

const DeviceTables& tables_on(at::Device device, FourBitValues values) {
  thread_local std::map<std::pair<std::string, FourBitValues>, DeviceTables> known;
  const auto [found, is_new] = known.try_emplace({device.str(), values});
  if (is_new) {
    const Table numbers = numbers_of(values);
    std::vector<float> pairs;
    for (size_t byte = 0; byte < 256; ++byte) {
      pairs.push_back(numbers[byte >> 4]);
      pairs.push_back(numbers[byte & 15]);
    }
    const std::array<float, 256>& scales = scale_numbers();
    found->second = {at::tensor(pairs).view({256, 2}).to(device),
                     at::tensor(at::ArrayRef<float>(scales.data(), scales.size())).to(device),
                     at::tensor(at::ArrayRef<float>(numbers.data(), numbers.size())).to(device)};
  }
  return found->second;
}

}  // namespace

at::Tensor pack_four_bits(const FourBits& format, const at::Tensor& values) {
  const c10::NoGradGuard no_grad;
  TORCH_CHECK(values.is_cpu() && values.is_contiguous(), "packing takes contiguous values of CPUs");
  const FourBitLayout layout(format, values.numel());
  at::Tensor packed = at::zeros({layout.bytes}, at::kByte);
  auto* bytes = packed.mutable_data_ptr<uint8_t>();
  const at::Tensor scales = at::empty({layout.num_blocks}, at::kFloat);
  const Rounding rounding(numbers_of(format.values));
  auto* own = scales.mutable_data_ptr<float>();
  if (values.scalar_type() == at::kBFloat16) {
    pack_blocks(rounding, values.const_data_ptr<at::BFloat16>(), values.numel(), bytes, own);
  } else {
    pack_blocks(rounding, values.const_data_ptr<float>(), values.numel(), bytes, own);
  }
  if (format.double_quantization) {
    pack_scales(scales, layout, bytes);
  } else {
    std::memcpy(bytes + layout.scales, own, scales.nbytes());
  }
  return packed;
}

void unpack_four_bits_out(const at::Tensor& values, const FourBits& format,
                          const at::Tensor& packed) {
  const c10::NoGradGuard no_grad;
  const FourBitLayout layout(format, values.numel());
  if (!packed.is_cpu()) {
    const DeviceTables& tables = tables_on(packed.device(), format.values);
    if (!cuda_rows::unpack_four_bits(values, layout, packed, tables.numbers, tables.scales)) {
      unpack_four_bits_by_operators_out(values, format, packed);
    }
    return;
  }
  const at::Tensor flat = values.view({-1});
  const PackedBytes bytes{layout, packed.const_data_ptr<uint8_t>()};
  const Table numbers = numbers_of(format.values);
  if (values.scalar_type() == at::kBFloat16) {
    unpack_blocks(numbers, bytes, flat.mutable_data_ptr<at::BFloat16>());
  } else {
    unpack_blocks(numbers, bytes, flat.mutable_data_ptr<float>());
  }
}

void unpack_four_bits_by_operators_out(const at::Tensor& values, const FourBits& format,
                                       const at::Tensor& packed) {
  const c10::NoGradGuard no_grad;
  const at::Tensor flat = values.view({-1});
  const FourBitLayout layout(format, values.numel());
  const DeviceTables& tables = tables_on(packed.device(), format.values);
  const auto part = [&](int64_t begin, int64_t bytes) { return packed.narrow(0, begin, bytes); };
  at::Tensor scales;
  if (layout.num_groups == 0) {
    scales = part(layout.scales, 4 * layout.num_blocks).view(at::kFloat);
  } else {
    const at::Tensor own =
        tables.scales.index_select(0, part(layout.scales, layout.num_blocks).to(at::kInt));
    const at::Tensor of_groups = part(layout.group_scales, 4 * layout.num_groups).view(at::kFloat);
    scales = own.mul_(of_groups.repeat_interleave(kFourBitScales).narrow(0, 0, layout.num_blocks))
                 .add_(part(layout.mean, 4).view(at::kFloat));
  }
  const int64_t num_bytes = (layout.num_elements + 1) / 2;
  for (int64_t begin = 0; begin < num_bytes; begin += kChunkBytes) {
    const int64_t bytes = std::min(kChunkBytes, num_bytes - begin), first = 2 * begin,
                  size = std::min(2 * bytes, layout.num_elements - first),
                  first_block = first / kFourBitBlock,
                  num_blocks = (size + kFourBitBlock - 1) / kFourBitBlock;
    const at::Tensor numbers =
        tables.pairs.index_select(0, part(begin, bytes).to(at::kInt)).flatten().narrow(0, 0, size);
    const at::Tensor of_blocks = scales.narrow(0, first_block, num_blocks);
    const at::Tensor out = flat.narrow(0, first, size);
    if (size % kFourBitBlock == 0) {
      out.copy_(numbers.view({-1, kFourBitBlock}).mul_(of_blocks.unsqueeze(1)).flatten());
    } else {
      out.copy_(numbers * of_blocks.repeat_interleave(kFourBitBlock).narrow(0, 0, size));
    }
  }
}

}  // namespace longspan
