#include "longspan/optim/packed_parameters.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <utility>
#include <variant>

#include "longspan/base/user_error.h"
#include "longspan/kernels/eight_bits.h"
#include "longspan/kernels/four_bits.h"
#include "longspan/kernels/grouped_bits.h"
#include "longspan/optim/loose_memory.h"

namespace longspan {
namespace {

/// Consecutive sources that are parts of one tensor of the files.
struct StoredTensor {
  std::vector<const ParameterSource*> parts;
  PackedFormat format;
  int64_t num_rows = 0, num_columns = 0;

  int64_t num_elements() const { return num_rows * num_columns; }
};

using TensorsOfUnit = std::vector<StoredTensor>;

std::map<int, TensorsOfUnit> stored_tensors(const std::vector<PackedSource>& sources) {
  std::map<int, TensorsOfUnit> units;
  for (const auto& [source, format] : sources) {
    TensorsOfUnit& tensors = units[source.spec.unit];
    const bool continues =
        !tensors.empty() && tensors.back().parts.back()->spec.stored_as == source.spec.stored_as;
    if (!continues) {
      tensors.push_back({.parts = {}, .format = format, .num_columns = source.spec.shape.at(1)});
    }
    tensors.back().parts.push_back(&source);
    tensors.back().num_rows += source.spec.shape.at(0);
  }
  return units;
}

at::Tensor values_of(const StoredTensor& tensor) {
  std::vector<at::Tensor> parts;
  for (const ParameterSource* source : tensor.parts) parts.push_back(source->make().flatten());
  return parts.size() == 1 ? parts[0].contiguous() : at::cat(parts);
}

/// Returns the packed bytes on the CPU.
at::Tensor packed_of(const StoredTensor& tensor) {
  const ParameterSource& first = *tensor.parts.front();
  if (std::holds_alternative<GroupedBits>(tensor.format)) {
    if (first.make_packed) return first.make_packed();
    throw UserError(
        fmt::format("{} is not in 4 bits, as config.json says. Load the model from its "
                    "folder.",
                    first.spec.stored_as));
  }
  const bool of_eight = std::holds_alternative<EightBits>(tensor.format);
  const at::Tensor values = values_of(tensor);
  if (!(of_eight ? values.to(at::kHalf) : values).isfinite().all().item<bool>()) {
    throw UserError(fmt::format(
        "quantization_bit: {}: {} of the model has numbers that are not finite{}. Use a model "
        "without such numbers, or remove the key.",
        of_eight ? 8 : 4, first.spec.stored_as, of_eight ? " in fp16" : ""));
  }
  if (of_eight) return pack_eight_bits(values.view({tensor.num_rows, tensor.num_columns}));
  return pack_four_bits(std::get<FourBits>(tensor.format), values);
}

void unpack_out(const at::Tensor& values, const PackedFormat& format, const at::Tensor& packed) {
  if (const auto* blocks = std::get_if<FourBits>(&format)) {
    return unpack_four_bits_out(values, *blocks, packed);
  }
  if (std::holds_alternative<EightBits>(format)) {
    return unpack_eight_bits_out(values, eight_bit_rows(packed, 0, values.size(0), values.size(1)));
  }
  unpack_grouped_bits_out(values, std::get<GroupedBits>(format), packed);
}

}  // namespace

/// Matrices of one unit. `share`: this rank's part of the packed bytes.
struct PackedParameters::Unit {
  struct Matrix {
    PackedFormat format;
    int64_t packed_begin, packed_bytes;  // in the bytes of all ranks
    int64_t begin;                       // in `whole`
    int64_t num_rows, num_columns;
  };
  std::vector<Matrix> matrices;
  at::Tensor share;
  at::Tensor whole;  // its memory exists during use
  /// The bytes of all ranks, if products take codes: `share` of one rank, else only during use.
  at::Tensor packed;
  bool is_there = false;
};

PackedParameters::PackedParameters(const std::vector<PackedSource>& sources,
                                   const PackingOptions& options, ParameterHooks* others)
    : options_(options), others_(others) {
  const c10::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> by_name;
  const int64_t num_ranks = options.shard.size();
  for (const auto& [number, tensors] : stored_tensors(sources)) {
    auto unit = std::make_unique<Unit>();
    int64_t num_bytes = 0, num_elements = 0;
    for (const StoredTensor& tensor : tensors) {
      const int64_t bytes = packed_bytes(tensor.format, tensor.num_rows, tensor.num_columns);
      unit->matrices.push_back(
          {tensor.format, num_bytes, bytes, num_elements, tensor.num_rows, tensor.num_columns});
      num_bytes += bytes;
      num_elements += round_up(tensor.num_elements(), kBufferAlignment);
    }
    const int64_t share = round_up((num_bytes + num_ranks - 1) / num_ranks, kBufferAlignment),
                  my_begin = options.shard.rank() * share, my_end = my_begin + share;
    unit->share = at::zeros({share}, at::TensorOptions(options.device).dtype(at::kByte));
    if (multiplies_codes(tensors.front().format)) {
      unit->packed = num_ranks == 1
                         ? unit->share
                         : buffer_without_memory(num_ranks * share, unit->share.options());
    }
    const at::ScalarType dtype = tensors.front().parts.front()->dtype;
    unit->whole =
        buffer_without_memory(num_elements, at::TensorOptions(options.device).dtype(dtype));
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Unit::Matrix& matrix = unit->matrices[i];
      const at::Tensor packed = packed_of(tensors[i]);
      const int64_t first = std::max(matrix.packed_begin, my_begin),
                    last = std::min(matrix.packed_begin + matrix.packed_bytes, my_end);
      if (first < last) {
        unit->share.narrow(0, first - my_begin, last - first)
            .copy_(packed.narrow(0, first - matrix.packed_begin, last - first));
      }
      int64_t begin = matrix.begin, row = 0;
      for (const ParameterSource* part : tensors[i].parts) {
        by_name[part->spec.name] = leaf_over(unit->whole, begin, part->spec.shape);
        begin += part->spec.num_elements();
        const int64_t num_rows = part->spec.shape.at(0);
        if (unit->packed.defined()) {
          const EightBitRows own =
              eight_bit_rows(unit->packed, matrix.packed_begin, matrix.num_rows, matrix.num_columns)
                  .rows(row, num_rows);
          codes_.push_back({part->spec.name + std::string(kCodesEnding), own.codes_OI});
          codes_.push_back({part->spec.name + std::string(kScalesEnding), own.scales_O});
        }
        row += num_rows;
      }
    }
    units_[number] = std::move(unit);
  }
  for (const PackedSource& packed : sources) {
    const std::string& name = packed.source.spec.name;
    parameters_.push_back({name, by_name.at(name)});
  }
}

PackedParameters::~PackedParameters() = default;

int64_t PackedParameters::held_bytes() const {
  int64_t bytes = 0;
  for (const auto& [number, unit] : units_) bytes += static_cast<int64_t>(unit->share.nbytes());
  return bytes;
}

void PackedParameters::unpack(Unit& unit) const {
  if (std::exchange(unit.is_there, true)) return;
  const c10::NoGradGuard no_grad;
  const at::Tensor packed = options_.shard.all_gather(unit.share).wait();
  const at::Tensor values = at::empty(unit.whole.sizes(), unit.whole.options());
  for (const Unit::Matrix& matrix : unit.matrices) {
    const int64_t rows = matrix.num_rows, columns = matrix.num_columns;
    unpack_out(values.narrow(0, matrix.begin, rows * columns).view({rows, columns}), matrix.format,
               packed.narrow(0, matrix.packed_begin, matrix.packed_bytes));
  }
  move_memory(unit.whole, values);
  if (unit.packed.defined() && options_.shard.size() > 1) move_memory(unit.packed, packed);
}

void PackedParameters::release(Unit& unit) {
  if (!std::exchange(unit.is_there, false)) return;
  drop_memory(unit.whole);
  if (unit.packed.defined() && !unit.packed.is_same(unit.share)) drop_memory(unit.packed);
}

void PackedParameters::before(int number, Use use, int next) {
  if (others_ != nullptr) others_->before(number, use, next);
  const auto unit = units_.find(number);
  if (use != Use::kGradients && unit != units_.end()) unpack(*unit->second);
}

void PackedParameters::after(int number, Use use) {
  if (const auto unit = units_.find(number); unit != units_.end()) release(*unit->second);
  if (others_ != nullptr) others_->after(number, use);
}

void PackedParameters::end_backward() {
  for (const auto& [number, unit] : units_) release(*unit);
}

void PackedParameters::for_each_whole(const std::function<void(const NamedTensor&)>& see) {
  for (const auto& [number, unit] : units_) {
    const bool was_there = unit->is_there;
    unpack(*unit);
    for (const NamedTensor& parameter : parameters_) {
      if (parameter.tensor.is_alias_of(unit->whole)) see(parameter);
    }
    if (!was_there) release(*unit);
  }
}

}  // namespace longspan
