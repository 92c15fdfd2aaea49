// Matrices in 4 bits, unpacked by GPU kernels, have the bits of the code for CPUs.
#include "longspan/kernels/cuda_packed.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "longspan/kernels/four_bits.h"
#include "longspan/kernels/grouped_bits.h"
#include "longspan/testing/gpu_check.h"

namespace longspan {
namespace {

using testing::AnyKernels;
using testing::on_gpu;
using testing::room;

bool same_bits(const at::Tensor& there, const at::Tensor& here) {
  return at::equal(there.cpu().view({-1}).view(at::kByte), here.view({-1}).view(at::kByte));
}

/// Bytes on the device that begin at an odd address, or not.
at::Tensor sent(const at::Tensor& bytes, bool is_aligned) {
  const int64_t offset = is_aligned ? 0 : 1;
  return at::empty({bytes.numel() + offset}, on_gpu(at::kByte))
      .narrow(0, offset, bytes.numel())
      .copy_(bytes);
}

/// The numbers of codes and scales: what the code for CPUs makes of a block of each code, and of a
/// scale of each code.
struct Numbers {
  at::Tensor codes, scales;
};

Numbers numbers_of(FourBitValues values) {
  const FourBits plain{.values = values, .double_quantization = false};
  const FourBitLayout layout(plain, kFourBitBlock);
  at::Tensor packed = at::zeros({layout.bytes}, at::kByte);
  for (int code = 0; code < 16; ++code) {
    packed.narrow(0, code / 2, 1).add_(code % 2 == 0 ? code << 4 : code);
  }
  packed.narrow(0, layout.scales, 4).view(at::kFloat).fill_(1.0f);
  at::Tensor codes = at::empty({kFourBitBlock}, at::kFloat);
  unpack_four_bits_out(codes, plain, packed);

  const FourBits twice{.values = values, .double_quantization = true};
  constexpr int64_t kCodes = 256;
  const FourBitLayout of_scales(twice, kCodes * kFourBitBlock);
  at::Tensor all = at::zeros({of_scales.bytes}, at::kByte);
  // The code of 1 in each block.
  const int64_t one = at::argmax(codes.narrow(0, 0, 16)).item<int64_t>();
  all.narrow(0, 0, kCodes * kFourBitBlock / 2).fill_(one << 4 | one);
  all.narrow(0, of_scales.scales, kCodes).copy_(at::arange(kCodes));
  all.narrow(0, of_scales.group_scales, 4).view(at::kFloat).fill_(1.0f);
  at::Tensor scales = at::empty({kCodes * kFourBitBlock}, at::kFloat);
  unpack_four_bits_out(scales, twice, all);
  return {codes.narrow(0, 0, 16).to(on_gpu(at::kFloat).device()),
          scales.view({kCodes, kFourBitBlock})
              .select(1, 0)
              .contiguous()
              .to(on_gpu(at::kFloat).device())};
}

TEST_CASE("cuda packed: blocks of bitsandbytes") {
  const AnyKernels kernels;
  at::manual_seed(3);
  for (const FourBitValues kind : {FourBitValues::kNf4, FourBitValues::kFp4}) {
    const Numbers numbers = numbers_of(kind);
    for (const bool twice : {false, true}) {
      const FourBits format{.values = kind, .double_quantization = twice};
      for (const int64_t size : {1, 2, 63, 64, 200, 4101}) {
        const at::Tensor packed = pack_four_bits(format, at::randn({size}, at::kFloat));
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
          at::Tensor expected = at::empty({size}, dtype);
          unpack_four_bits_out(expected, format, packed);
          for (const bool is_aligned : {true, false}) {
            CAPTURE(size);
            CAPTURE(is_aligned);
            const at::Tensor values = room({size}, dtype, is_aligned);
            REQUIRE(cuda_rows::unpack_four_bits(values, FourBitLayout(format, size),
                                                sent(packed, /*is_aligned=*/true), numbers.codes,
                                                numbers.scales));
            CHECK(same_bits(values, expected));
          }
        }
      }
    }
  }
}

TEST_CASE("cuda packed: groups of columns with a scale and a zero") {
  const AnyKernels kernels;
  at::manual_seed(4);
  struct Shape {
    int64_t rows, columns, group_size;
  };
  for (const Shape& shape : {Shape{1, 1, -1}, Shape{3, 7, 4}, Shape{5, 64, 32}, Shape{9, 136, 0}}) {
    const GroupedBits format{.group_size = shape.group_size};
    const GroupedLayout layout(format, shape.rows, shape.columns);
    const at::Tensor packed = at::randint(0, 256, {layout.bytes}, at::kByte);
    const int64_t num_scales = shape.rows * layout.num_groups;
    packed.narrow(0, layout.scales, 4 * num_scales).view(at::kFloat).copy_(at::randn({num_scales}));
    packed.narrow(0, layout.zeros, num_scales).copy_(at::randint(0, 17, {num_scales}));
    // Columns of a group need not be neighbours.
    packed.narrow(0, layout.groups, 4 * shape.columns)
        .view(at::kInt)
        .copy_(at::randint(0, layout.num_groups, {shape.columns}));
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      at::Tensor expected = at::empty({shape.rows, shape.columns}, dtype);
      unpack_grouped_bits_out(expected, format, packed);
      for (const bool is_aligned : {true, false}) {
        CAPTURE(shape.columns);
        CAPTURE(is_aligned);
        const at::Tensor values = room({shape.rows, shape.columns}, dtype, is_aligned);
        REQUIRE(cuda_rows::unpack_grouped_bits(values, layout, sent(packed, /*is_aligned=*/true)));
        CHECK(same_bits(values, expected));
      }
    }
  }
}

TEST_CASE("cuda packed: tensors without a kernel") {
  const AnyKernels kernels;
  const FourBits format;
  const at::Tensor packed = sent(pack_four_bits(format, at::ones({8})), true),
                   wide = at::empty({8}, on_gpu(at::kDouble)),
                   numbers = at::empty({256}, on_gpu(at::kFloat));
  const FourBitLayout layout(format, 8);
  CHECK(!cuda_rows::unpack_four_bits(wide, layout, packed, numbers, numbers));
  const at::Tensor values = at::empty({8}, on_gpu(at::kFloat)),
                   odd = sent(packed.cpu(), /*is_aligned=*/false);
  CHECK(!cuda_rows::unpack_four_bits(values, layout, odd, numbers, numbers));
}

}  // namespace
}  // namespace longspan
