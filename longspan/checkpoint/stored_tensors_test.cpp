#include "longspan/checkpoint/stored_tensors.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "longspan/checkpoint/fp8_blocks.h"
#include "longspan/checkpoint/mxfp4.h"
#include "longspan/testing/bytes_read.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

constexpr int64_t kRows = 330, kColumns = 192;  // the last block of rows is cut
constexpr int64_t kExperts = 3, kExpert = 1;

/// A matrix in a file: the numbers, and their scales.
StoredParameter stored(const std::string& path, const at::Tensor& numbers,
                       const at::Tensor& scales) {
  write_safetensors(path, {{"numbers", numbers}, {"scales", scales}});
  const auto file = std::make_shared<const SafetensorsFile>(path);
  StoredParameter parameter;
  parameter.spec.name = parameter.spec.stored_as = "numbers";
  parameter.spec.shape = {kRows, kColumns};
  for (const SafetensorsEntry& entry : file->entries()) {
    (entry.name == "scales" ? parameter.scales : parameter.numbers) = {file, &entry};
  }
  return parameter;
}

/// A parameter of a file, and its numbers in fp32.
struct Case {
  StoredParameter parameter;
  at::Tensor whole_RC;
};

Case stored_fp8(const std::string& path) {
  StoredNumbers format{
      .format = StoredNumbers::Format::kFp8, .block_rows = 32, .block_columns = 64};
  const at::Tensor bytes =
      at::arange(kRows * kColumns).remainder(127).to(at::kByte).view({kRows, kColumns});
  const at::Tensor scales =
      at::rand(fp8_scales_shape(kRows, kColumns, format.block_rows, format.block_columns)) + 0.5;
  StoredParameter parameter = stored(path, bytes.view(at::kFloat8_e4m3fn), scales);
  parameter.stored = format;
  const at::Tensor scales_RC = scales.repeat_interleave(format.block_rows, 0)
                                   .narrow(0, 0, kRows)
                                   .repeat_interleave(format.block_columns, 1);
  return {parameter, bytes.view(at::kFloat8_e4m3fn).to(at::kFloat) * scales_RC};
}

Case stored_mxfp4(const std::string& path) {
  const auto bytes = [](const std::vector<int64_t>& shape, int64_t least, int64_t most) {
    return at::randint(least, most, shape, at::kByte);
  };
  const at::Tensor blocks = bytes(mxfp4_blocks_shape(kExperts, kRows, kColumns), 0, 256),
                   scales = bytes(mxfp4_scales_shape(kExperts, kRows, kColumns), 120, 130);
  StoredParameter parameter = stored(path, blocks, scales);
  parameter.spec.stored_part = StoredPart{.begin = kExpert, .num_rows = kExperts, .stacked = true};
  parameter.stored = {.format = StoredNumbers::Format::kMxfp4};
  const at::Tensor sizes = at::tensor({0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F}),
                   values = at::cat({sizes, -sizes}),
                   halves = at::stack({blocks[kExpert].remainder(16),
                                       blocks[kExpert].div(16, /*rounding_mode=*/"floor")},
                                      -1)
                                .flatten(2),
                   powers = at::exp2(scales[kExpert].to(at::kFloat) - 127);
  return {parameter,
          (values.index({halves.to(at::kLong)}) * powers.unsqueeze(2)).view({kRows, kColumns})};
}

TEST_CASE("stored tensors: runs of fp8 and MXFP4 are those of the whole, and only they are read") {
  const testing::TemporaryFolder folder;
  for (const auto& [parameter, whole_RC] :
       {stored_fp8(folder / "fp8"), stored_mxfp4(folder / "mxfp4")}) {
    const bool fp8 = parameter.stored.format == StoredNumbers::Format::kFp8;
    CAPTURE(fp8);
    REQUIRE(parameter.holds_runs());
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CHECK(at::equal(parameter.read(dtype), whole_RC.to(dtype)));
      const at::Tensor whole = whole_RC.flatten().to(dtype);
      for (const auto& [begin, end] :
           std::vector<std::pair<int64_t, int64_t>>{{0, kRows * kColumns},
                                                    {0, 1},
                                                    {31 * kColumns, 32 * kColumns + 1},
                                                    {40 * kColumns + 7, 100 * kColumns - 3},
                                                    {kRows * kColumns - 1, kRows * kColumns},
                                                    {5, 5}}) {
        CAPTURE(begin);
        const at::Tensor run = parameter.read_run(begin, end, dtype);
        CHECK((run.scalar_type() == dtype));
        CHECK(at::equal(run, whole.slice(0, begin, end)));
      }
    }
    if (const auto before = testing::bytes_read()) {
      parameter.read_run(70 * kColumns, 75 * kColumns, at::kFloat);
      // fp8: a block of rows, and all scales.
      const int64_t least = fp8 ? 32 * kColumns + 4 * (kRows / 32 + 1) * (kColumns / 64)
                                : 5 * (kColumns / 2 + kColumns / 32);
      CHECK(*testing::bytes_read() - *before < least + testing::kOwnBytes);
    }
  }
}

}  // namespace
}  // namespace longspan
