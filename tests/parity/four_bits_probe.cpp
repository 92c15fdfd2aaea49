// Packs matrices for the Python tests: four_bits_probe <values.safetensors> <result.safetensors>
// <nf4 | fp4> <double | single>; or in 8 bits, with products: four_bits_probe <values.safetensors>
// <result.safetensors> eight; or unpacks those of a folder in 4 bits: four_bits_probe <folder>
// <result.safetensors>.
//
// The result in 8 bits: of each matrix NAME its NAME.codes and NAME.scales, its unpacked values
// NAME, the product NAME.y of the tokens NAME.x with it, and NAME.sums: of products of its codes
// with each other, if all ways agree.
// The result of packing: of each matrix NAME the parts NAME.codes, NAME.scales and, if scales are
// in 8 bits, NAME.group_scales and NAME.mean; and its unpacked values NAME and NAME.by_operators.
// The result of unpacking: the values NAME in fp32 and NAME.bf16, if all ways to unpack agree.
#include <ATen/ATen.h>

#include <iostream>
#include <map>
#include <string>
#include <utility>

#include "longspan/checkpoint/model_folder.h"
#include "longspan/checkpoint/safetensors.h"
#include "longspan/kernels/eight_bits.h"
#include "longspan/kernels/four_bits.h"
#include "longspan/kernels/grouped_bits.h"

namespace longspan {
namespace {

/// Tensors of the files: parts of one are put together.
void unpack_folder(const char* folder, const char* result) {
  const ModelConfig config = load_folder_config(folder);
  const GroupedBits format = config.stored.four_bits()->format;
  std::vector<NamedTensor> results;
  for (const auto& [dtype, suffix] :
       {std::pair(at::kFloat, ""), std::pair(at::kBFloat16, ".bf16")}) {
    for (const ParameterSource& source : parameter_sources(folder, config, dtype)) {
      if (!source.make_packed) continue;
      const at::Tensor part = source.make();
      const std::string name = source.spec.stored_as + suffix;
      if (begins_stored(source.spec)) {
        results.push_back({name, part});
        continue;
      }
      results.back().tensor = at::cat({results.back().tensor, part});
    }
    for (const ParameterSource& source : parameter_sources(folder, config, dtype)) {
      if (!source.make_packed || !begins_stored(source.spec)) continue;
      const std::string name = source.spec.stored_as + suffix;
      for (const NamedTensor& read : results) {
        if (read.name != name) continue;
        const at::Tensor loop = at::zeros_like(read.tensor), composed = at::zeros_like(read.tensor);
        unpack_grouped_bits_out(loop, format, source.make_packed());
        unpack_grouped_bits_by_operators_out(composed, format, source.make_packed());
        TORCH_CHECK(loop.equal(read.tensor), name, ": unpacked otherwise than read");
        TORCH_CHECK(composed.equal(read.tensor), name, ": composed otherwise than read");
      }
    }
  }
  write_safetensors(result, results);
}

/// Of some columns of a wider tensor, as layers may have them.
at::Tensor product(const at::Tensor& x, const EightBitRows& matrix) {
  const int64_t num_outputs = matrix.codes_OI.size(0);
  const at::Tensor y = at::zeros({x.size(0), num_outputs + 3}, x.options());
  eight_bit_product_out(y.narrow(1, 1, num_outputs), x, matrix);
  return y.narrow(1, 1, num_outputs).contiguous();
}

void multiply_eight_bits(const char* file, const char* result) {
  std::vector<NamedTensor> results;
  std::map<std::string, EightBitRows> matrices;
  for (const auto& [name, tensor] : read_safetensors(file)) {
    if (name.ends_with(".x")) continue;
    const at::Tensor packed = pack_eight_bits(tensor);
    const EightBitRows matrix = eight_bit_rows(packed, 0, tensor.size(0), tensor.size(1));
    results.push_back({name + ".codes", matrix.codes_OI.clone()});
    results.push_back({name + ".scales", matrix.scales_O.clone()});
    const at::Tensor values = at::empty_like(tensor);
    unpack_eight_bits_out(values, matrix);
    results.push_back({name, values});
    const at::Tensor sums = code_product(matrix.codes_OI, matrix.codes_OI, CodeProduct::kFloats);
    TORCH_CHECK(!bytes_multiply() ||
                    code_product(matrix.codes_OI, matrix.codes_OI, CodeProduct::kBytes).equal(sums),
                name);
    results.push_back({name + ".sums", sums});
    matrices[name] = matrix;
  }
  for (const auto& [name, tensor] : read_safetensors(file)) {
    if (!name.ends_with(".x")) continue;
    const std::string of = name.substr(0, name.size() - 2);
    results.push_back({of + ".y", product(tensor, matrices.at(of))});
  }
  write_safetensors(result, results);
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  using namespace longspan;
  try {
    if (argc == 3) {
      unpack_folder(argv[1], argv[2]);
      return 0;
    }
    if (argc == 4 && std::string(argv[3]) == "eight") {
      multiply_eight_bits(argv[1], argv[2]);
      return 0;
    }
    if (argc != 5) throw std::runtime_error("four_bits_probe <values> <result> <type> <scales>");
    const FourBits format{std::string(argv[3]) == "fp4" ? FourBitValues::kFp4 : FourBitValues::kNf4,
                          std::string(argv[4]) == "double"};
    std::vector<NamedTensor> results;
    for (const auto& [name, tensor] : read_safetensors(argv[1])) {
      const at::Tensor packed = pack_four_bits(format, tensor.contiguous());
      const FourBitLayout layout(format, tensor.numel());
      const auto part = [&](const char* what, int64_t begin, int64_t bytes, bool floats) {
        const at::Tensor own = packed.narrow(0, begin, bytes).clone();
        results.push_back({name + "." + what, floats ? own.view(at::kFloat) : own});
      };
      part("codes", 0, (tensor.numel() + 1) / 2, false);
      if (format.double_quantization) {
        part("scales", layout.scales, layout.num_blocks, false);
        part("group_scales", layout.group_scales, 4 * layout.num_groups, true);
        part("mean", layout.mean, 4, true);
      } else {
        part("scales", layout.scales, 4 * layout.num_blocks, true);
      }
      const at::Tensor values = at::empty_like(tensor, at::MemoryFormat::Contiguous);
      unpack_four_bits_out(values, format, packed);
      results.push_back({name, values});
      const at::Tensor by_operators = at::zeros_like(values);
      unpack_four_bits_by_operators_out(by_operators, format, packed);
      results.push_back({name + ".by_operators", by_operators});
    }
    write_safetensors(argv[2], results);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
