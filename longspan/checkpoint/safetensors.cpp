// The format: 8 bytes (little endian) length of the header, the header as JSON, the data. The
// header maps names to {dtype, shape, data_offsets}; offsets count from the end of the header.
// Readers must refuse holes, overlaps and bytes that belong to nobody.
#include "longspan/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "longspan/checkpoint/atomic_file.h"
#include "longspan/config/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation

constexpr std::pair<const char*, at::ScalarType> kDtypes[] = {
    {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf},  {"BF16", at::kBFloat16},
    {"I64", at::kLong},   {"I32", at::kInt},   {"I16", at::kShort}, {"I8", at::kChar},
    {"U8", at::kByte},    {"BOOL", at::kBool}};

[[noreturn]] void corrupt(const std::string& path, const std::string& what) {
  throw UserError(fmt::format(
      "{} is not a valid safetensors file: {}. Fetch or write the file again.", path, what));
}

/// A whole file in memory, copy-on-write.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const InputFile file(path, "tensors");
    size_ = file.size();
    if (size_ < 8) {
      corrupt(path, fmt::format("it has {}, a header needs at least 8", counted(size_, "byte")));
    }
    data_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.descriptor(), 0);
    if (data_ == MAP_FAILED) {
      throw UserError(fmt::format("Cannot map {} into memory: {}.", path, std::strerror(errno)));
    }
  }
  ~Mapping() { ::munmap(data_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const { return static_cast<char*>(data_); }
  int64_t size() const { return size_; }

 private:
  void* data_ = MAP_FAILED;
  int64_t size_ = 0;
};

int64_t natural_number(const nlohmann::json& value, const std::string& path,
                       const std::string& what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    corrupt(path, what + " is not a natural number");
  }
  return value.get<int64_t>();
}

SafetensorsEntry parse_entry(const std::string& path, const std::string& name,
                             const nlohmann::json& value) {
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
      !value.contains("shape") || !value["shape"].is_array() || !value.contains("data_offsets") ||
      !value["data_offsets"].is_array() || value["data_offsets"].size() != 2) {
    corrupt(path, fmt::format("tensor {} lacks dtype, shape or data_offsets", name));
  }
  const auto dtype_name = value["dtype"].get<std::string>();
  const auto* dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                   [&](const auto& known) { return dtype_name == known.first; });
  if (dtype == std::end(kDtypes)) {
    throw UserError(
        fmt::format("{}: tensor {} has dtype {}, which is not supported (F32, BF16, F16 and F64 "
                    "are). Convert the checkpoint.",
                    path, name, dtype_name));
  }
  SafetensorsEntry entry{name, dtype->second, {}, 0, 0};
  int64_t num_bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
  for (const auto& dim : value["shape"]) {
    entry.shape.push_back(natural_number(dim, path, "a dimension of " + name));
    if (__builtin_mul_overflow(num_bytes, entry.shape.back(), &num_bytes)) {
      corrupt(path, fmt::format("tensor {} is larger than any memory", name));
    }
  }
  entry.begin = natural_number(value["data_offsets"][0], path, "an offset of " + name);
  entry.end = natural_number(value["data_offsets"][1], path, "an offset of " + name);
  if (entry.begin > entry.end || entry.end - entry.begin != num_bytes) {
    corrupt(path, fmt::format("tensor {} takes {} bytes but its offsets are {} to {}", name,
                              num_bytes, entry.begin, entry.end));
  }
  return entry;
}

std::vector<SafetensorsEntry> parse_header(const std::string& path, const char* data,
                                           int64_t file_size) {
  uint64_t header_size = 0;
  for (int byte = 7; byte >= 0; --byte) {
    header_size = header_size << 8 | static_cast<unsigned char>(data[byte]);
  }
  if (header_size > static_cast<uint64_t>(std::min(kMaxHeaderBytes, file_size - 8))) {
    corrupt(path, fmt::format("its header should have {} bytes, the file has {} in all",
                              header_size, file_size));
  }
  const int64_t data_begin = 8 + static_cast<int64_t>(header_size);
  nlohmann::json header;
  try {
    header = parse_json({data + 8, header_size}, "its header");
  } catch (const UserError& error) {
    corrupt(path, error.what());
  }
  if (!header.is_object()) corrupt(path, "its header is not a JSON object");

  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") entries.push_back(parse_entry(path, name, value));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t end = 0;
  for (auto& entry : entries) {
    if (entry.begin != end) {
      corrupt(path, fmt::format("tensor {} begins at {} where {} was expected (overlap or hole)",
                                entry.name, entry.begin, end));
    }
    end = entry.end;
    if (end > file_size - data_begin) {
      corrupt(path, fmt::format("tensor {} ends at byte {} but the file has {}; it is truncated",
                                entry.name, data_begin + end, file_size));
    }
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  if (data_begin + end != file_size) {
    corrupt(path, fmt::format("it has {} after the last tensor, which belong to nobody",
                              counted(file_size - data_begin - end, "byte")));
  }
  return entries;
}

}  // namespace

std::vector<SafetensorsEntry> read_safetensors_header(const std::string& path) {
  const Mapping mapping(path);
  return parse_header(path, mapping.data(), mapping.size());
}

std::vector<NamedTensor> read_safetensors(const std::string& path) {
  const auto mapping = std::make_shared<Mapping>(path);
  std::vector<NamedTensor> tensors;
  for (const auto& entry : parse_header(path, mapping->data(), mapping->size())) {
    char* data = mapping->data() + entry.begin;
    auto tensor =
        at::from_blob(data, entry.shape, [mapping](void*) {}, at::TensorOptions(entry.dtype));
    // Old writers did not pad the header; unaligned numbers must not be touched in place.
    const bool unaligned = reinterpret_cast<uintptr_t>(data) % c10::elementSize(entry.dtype) != 0;
    if (unaligned && entry.end > entry.begin) {
      tensor = at::empty(entry.shape, entry.dtype);
      std::memcpy(tensor.data_ptr(), data, entry.end - entry.begin);
    }
    tensors.push_back({entry.name, std::move(tensor)});
  }
  return tensors;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<Planned> planned)
    : file_(path), planned_(std::move(planned)) {
  nlohmann::ordered_json header;
  header["__metadata__"]["format"] = "pt";
  int64_t offset = 0;
  for (const auto& [name, dtype, shape] : planned_) {
    const auto* known =
        std::find_if(std::begin(kDtypes), std::end(kDtypes),
                     [dtype = dtype](const auto& pair) { return pair.second == dtype; });
    TORCH_CHECK(known != std::end(kDtypes), "safetensors has no name for dtype ", dtype);
    const int64_t end =
        offset + c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(dtype));
    header[name] = {{"dtype", known->first}, {"shape", shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data aligned for every dtype
  std::string length(8, '\0');
  for (int byte = 0; byte < 8; ++byte) {
    length[byte] = static_cast<char>(text.size() >> (8 * byte));
  }
  file_.write(length.data(), length.size());
  file_.write(text.data(), text.size());
}

void SafetensorsWriter::write(const at::Tensor& tensor) {
  const Planned& planned = planned_.at(next_++);
  TORCH_CHECK(tensor.sizes() == at::IntArrayRef(planned.shape), "another shape was planned for ",
              planned.name);
  const auto plain = tensor.detach().to(at::kCPU, planned.dtype).contiguous();
  file_.write(plain.const_data_ptr(), plain.nbytes());
}

void SafetensorsWriter::commit() {
  TORCH_CHECK(next_ == planned_.size(), "more tensors were planned");
  file_.commit();
}

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       std::optional<at::ScalarType> dtype) {
  std::vector<SafetensorsWriter::Planned> planned;
  for (const auto& [name, tensor] : tensors) {
    planned.push_back({name, dtype.value_or(tensor.scalar_type()), tensor.sizes().vec()});
  }
  SafetensorsWriter file(path, std::move(planned));
  for (const auto& [name, tensor] : tensors) file.write(tensor);
  file.commit();
}

}  // namespace longspan
