// A file is 8 bytes of header length (little endian), the JSON header and the data. Files are read
// and not mapped: a file that shrinks meanwhile is an error here, but SIGBUS in a mapping.
#include "longspan/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
#include "longspan/input/input_file.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/text/bytes.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

constexpr int64_t kChunkBytes = int64_t{4} << 20;  // that one thread reads at a time
/// Smaller tensors are read without a check of free memory.
constexpr int64_t kLargeBytes = int64_t{1} << 30;

/// An open file that several threads may read at any offset.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : file_(path, "tensors") {}

  int64_t size() const { return file_.size(); }

  void read(void* to, int64_t offset, int64_t num_bytes) const {
    char* cursor = static_cast<char*>(to);
    while (num_bytes > 0) {
      const ssize_t got =
          ::pread(file_.descriptor(), cursor, static_cast<size_t>(num_bytes), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        throw UserError(fmt::format("Cannot read {}: {}.", file_.path(), std::strerror(errno)));
      }
      if (got == 0) refuse_changed(fmt::format("it ended at byte {}", offset));
      cursor += got;
      offset += got;
      num_bytes -= got;
    }
  }

  [[noreturn]] void refuse_changed(const std::string& how) const {
    throw UserError(fmt::format(
        "{} was changed while it was read: {}, which is not what its header promises. Start again "
        "when nothing writes to it any more.",
        file_.path(), how));
  }

 private:
  InputFile file_;
};

void require_memory(const SafetensorsEntry& entry, const std::string& path, int64_t num_bytes) {
  if (num_bytes < kLargeBytes) return;
  const MachineMemory machine = machine_memory();
  if (num_bytes <= machine.bytes) return;
  throw UserError(fmt::format("{}: {} takes {}, and {}.", path, entry.name, name_bytes(num_bytes),
                              machine.text()));
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)) {
  const OpenFile file(path_);
  size_ = file.size();
  if (size_ < 8) {
    refuse_safetensors(path_,
                       fmt::format("it has {}, a header needs at least 8", counted(size_, "byte")));
  }
  char first[8];
  file.read(first, 0, 8);
  std::string header(safetensors_header_size(path_, first, size_), '\0');
  file.read(header.data(), 8, std::ssize(header));
  entries_ = parse_safetensors_header(path_, header, size_);
}

void SafetensorsFile::read_run(const SafetensorsEntry& entry, int64_t begin, int64_t end,
                               const at::Tensor& to) const {
  const auto element = static_cast<int64_t>(c10::elementSize(entry.dtype));
  TORCH_CHECK(0 <= begin && begin <= end && end * element <= entry.end - entry.begin &&
                  to.dim() == 1 && to.numel() == end - begin,
              "numbers ", begin, " to ", end, " of ", entry.name);
  const OpenFile file(path_);
  if (file.size() != size_) {
    file.refuse_changed(fmt::format("it had {} and has {}", counted(size_, "byte"), file.size()));
  }
  const int64_t offset = entry.begin + begin * element, chunk = kChunkBytes / element;
  const bool as_it_is = to.scalar_type() == entry.dtype && to.is_contiguous();
  char* const data = as_it_is ? static_cast<char*>(to.data_ptr()) : nullptr;
  const int64_t num_chunks = (end - begin + chunk - 1) / chunk;
  at::parallel_for(0, num_chunks, 1, [&](int64_t first, int64_t last) {
    std::unique_ptr<char[]> buffer;
    if (!as_it_is) buffer = std::make_unique_for_overwrite<char[]>(kChunkBytes);
    for (int64_t i = first; i < last; ++i) {
      const int64_t at = i * chunk, size = std::min(chunk, end - begin - at);
      char* const target = as_it_is ? data + at * element : buffer.get();
      file.read(target, offset + at * element, size * element);
      if (as_it_is) continue;
      to.narrow(0, at, size).copy_(at::from_blob(target, {size}, at::TensorOptions(entry.dtype)));
    }
  });
}

at::Tensor SafetensorsFile::read(const SafetensorsEntry& entry,
                                 std::optional<at::ScalarType> dtype) const {
  const at::ScalarType wanted = dtype.value_or(entry.dtype);
  const auto element = static_cast<int64_t>(c10::elementSize(entry.dtype));
  const int64_t count = (entry.end - entry.begin) / element;
  require_memory(entry, path_, count * static_cast<int64_t>(c10::elementSize(wanted)));
  const at::Tensor tensor = at::empty(entry.shape, wanted);
  read_run(entry, 0, count, tensor.view({count}));
  return tensor;
}

std::vector<NamedTensor> read_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  std::vector<NamedTensor> tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    tensors.push_back({entry.name, file.read(entry)});
  }
  return tensors;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<Planned> planned)
    : file_(path), planned_(std::move(planned)) {
  nlohmann::ordered_json header;
  header["__metadata__"]["format"] = "pt";
  int64_t offset = 0;
  for (const auto& [name, dtype, shape] : planned_) {
    const char* dtype_name = safetensors_name(dtype);
    TORCH_CHECK(dtype_name != nullptr, "safetensors has no name for dtype ", dtype);
    const int64_t end =
        offset + c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(dtype));
    header[name] = {{"dtype", dtype_name}, {"shape", shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data for every dtype
  std::string length(8, '\0');
  for (int byte = 0; byte < 8; ++byte) {
    length[byte] = static_cast<char>(text.size() >> (8 * byte));
  }
  file_.write(length.data(), length.size());
  file_.write(text.data(), text.size());
}

void SafetensorsWriter::write(const at::Tensor& tensor) {
  const Planned& planned = planned_.at(next_);
  const at::IntArrayRef whole(planned.shape);
  if (tensor.sizes() == whole) {
    TORCH_CHECK(num_written_ == 0, "more than all of ", planned.name);
    ++next_;
  } else {
    const int64_t total = c10::multiply_integers(whole);
    TORCH_CHECK(tensor.dim() > 0 && tensor.dim() <= std::ssize(planned.shape) &&
                    tensor.sizes().slice(1) == whole.slice(whole.size() - tensor.dim() + 1) &&
                    num_written_ + tensor.numel() <= total,
                "another shape was planned for ", planned.name);
    num_written_ += tensor.numel();
    if (num_written_ == total) {
      ++next_;
      num_written_ = 0;
    }
  }
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
