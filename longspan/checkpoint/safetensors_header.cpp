// The header maps names to {dtype, shape, data_offsets}. Offsets count from the end of the header.
// Readers must refuse holes, overlaps and bytes of no tensor.
#include "longspan/checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

constexpr std::pair<const char*, at::ScalarType> kDtypes[] = {{"F64", at::kDouble},
                                                              {"F32", at::kFloat},
                                                              {"F16", at::kHalf},
                                                              {"BF16", at::kBFloat16},
                                                              {"I64", at::kLong},
                                                              {"I32", at::kInt},
                                                              {"I16", at::kShort},
                                                              {"I8", at::kChar},
                                                              {"U8", at::kByte},
                                                              {"BOOL", at::kBool},
                                                              {"F8_E4M3", at::kFloat8_e4m3fn}};
constexpr size_t kMaxDims = 64;  // torch's own limit

/// Returns the text, shortened to 200 bytes.
std::string cut(std::string_view text) {
  return text.size() <= 200 ? std::string(text) : std::string(text.substr(0, 197)) + "...";
}

/// Handles the header's JSON events one by one, so unused parts take no memory, however deep or
/// long.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}

  std::vector<SafetensorsEntry> take_entries() { return std::move(entries_); }

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("true or false"); }
  bool number_integer(number_integer_t) override { return other("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a fraction"); }
  bool binary(binary_t&) override { return other("binary"); }

  bool number_unsigned(number_unsigned_t number) override {
    const bool wanted = depth_ == 3 && (key_ == Field::kShape || key_ == Field::kOffsets);
    if (!wanted || in_metadata_) return other("a number");
    if (number > uint64_t{INT64_MAX}) fail(fmt::format("{} is not a natural number", place()));
    std::vector<int64_t>& numbers = key_ == Field::kShape ? now_.shape : now_.offsets;
    if (numbers.size() == (key_ == Field::kShape ? kMaxDims : 2)) {
      fail(fmt::format("tensor {} has more than {} {}", cut(now_.name), numbers.size(),
                       key_ == Field::kShape ? "dims" : "data_offsets"));
    }
    numbers.push_back(static_cast<int64_t>(number));
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ != 2 || key_ != Field::kDtype || in_metadata_) return other("text");
    now_.dtype = cut(text);
    return true;
  }

  bool start_object(size_t) override {
    const bool is_line = depth_ == 1 && !in_metadata_;
    if (depth_ > 0 && !is_line) other("an object");
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1 && !in_metadata_) finish_entry();
    if (depth_ == 1) in_metadata_ = false;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 0) fail("its header is not a JSON object");
    const bool wanted = depth_ == 2 && (key_ == Field::kShape || key_ == Field::kOffsets);
    if (wanted && !in_metadata_) {
      (key_ == Field::kShape ? now_.has_shape : now_.has_offsets) = true;
    } else {
      other("a list");
    }
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      in_metadata_ = name == "__metadata__";
      now_ = {};
      now_.name = name;
    } else if (depth_ == 2) {
      key_ = name == "dtype"          ? Field::kDtype
             : name == "shape"        ? Field::kShape
             : name == "data_offsets" ? Field::kOffsets
                                      : Field::kOther;
      const bool again = (key_ == Field::kDtype && now_.dtype) ||
                         (key_ == Field::kShape && now_.has_shape) ||
                         (key_ == Field::kOffsets && now_.has_offsets);
      if (again && !in_metadata_) fail(fmt::format("tensor {} has {} twice", cut(now_.name), name));
    }
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    fail(fmt::format("its header is broken JSON ({})", cut(error.what())));
  }

 private:
  enum class Field { kOther, kDtype, kShape, kOffsets };
  struct Line {
    std::string name;
    std::optional<std::string> dtype;
    std::vector<int64_t> shape, offsets;
    bool has_shape = false, has_offsets = false;
  };

  [[noreturn]] void fail(const std::string& what) const { refuse_safetensors(path_, what); }

  std::string place() const {
    return fmt::format("{} {}", key_ == Field::kShape ? "a dimension of" : "an offset of",
                       cut(now_.name));
  }

  /// Handles a value of an unexpected type. Keys beside the three may have any value.
  bool other(const char* kind) const {
    if (depth_ == 0) fail("its header is not a JSON object");
    if (in_metadata_) return true;
    if (depth_ == 1) lacks();
    if (depth_ == 2 && key_ != Field::kOther) lacks();
    if (depth_ == 3 && (key_ == Field::kShape || key_ == Field::kOffsets)) {
      fail(fmt::format("{} is not a natural number but {}", place(), kind));
    }
    return true;
  }

  [[noreturn]] void lacks() const {
    fail(fmt::format("tensor {} lacks dtype, shape or data_offsets", cut(now_.name)));
  }

  void finish_entry() {
    if (!now_.dtype || !now_.has_shape || now_.offsets.size() != 2) lacks();
    const auto* dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                     [&](const auto& known) { return *now_.dtype == known.first; });
    if (dtype == std::end(kDtypes)) {
      throw UserError(fmt::format(
          "{}: tensor {} has dtype {}, which is not supported (F32, BF16, F16 and F64 are). "
          "Convert the checkpoint.",
          path_, cut(now_.name), *now_.dtype));
    }
    auto num_bytes = static_cast<int64_t>(c10::elementSize(dtype->second));
    bool overflows = false, is_empty = false;
    for (const int64_t dim : now_.shape) {
      is_empty = is_empty || dim == 0;
      // The other dims of an empty tensor must not overflow either.
      overflows |= __builtin_mul_overflow(num_bytes, std::max<int64_t>(dim, 1), &num_bytes);
    }
    if (overflows) fail(fmt::format("tensor {} is larger than any memory", cut(now_.name)));
    if (is_empty) num_bytes = 0;
    const int64_t begin = now_.offsets[0], end = now_.offsets[1];
    if (begin > end || end - begin != num_bytes) {
      fail(fmt::format("tensor {} takes {} bytes but its offsets are {} to {}", cut(now_.name),
                       num_bytes, begin, end));
    }
    entries_.push_back({now_.name, dtype->second, std::move(now_.shape), begin, end});
  }

  const std::string& path_;
  std::vector<SafetensorsEntry> entries_;
  Line now_;
  Field key_ = Field::kOther;
  int depth_ = 0;
  bool in_metadata_ = false;
};

void require_single_names(const std::string& path, const std::vector<SafetensorsEntry>& entries) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) names.push_back(entry.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) {
    refuse_safetensors(path, fmt::format("tensor {} is there twice", cut(*twice)));
  }
}

}  // namespace

const char* safetensors_name(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (known == dtype) return name;
  }
  return nullptr;
}

bool has_plain_numbers(at::ScalarType dtype) {
  return at::isFloatingType(dtype) && dtype != at::kFloat8_e4m3fn;
}

void refuse_safetensors(const std::string& path, const std::string& what) {
  throw UserError(fmt::format(
      "{} is not a valid safetensors file: {}. Fetch or write the file again.", path, what));
}

int64_t safetensors_header_size(const std::string& path, const char* first_8_bytes,
                                int64_t file_size) {
  uint64_t size = 0;
  for (int byte = 7; byte >= 0; --byte) {
    size = size << 8 | static_cast<unsigned char>(first_8_bytes[byte]);
  }
  if (size > static_cast<uint64_t>(file_size - 8)) {
    refuse_safetensors(path, fmt::format("its header should have {} bytes, the file has {} in all",
                                         size, file_size));
  }
  if (size > static_cast<uint64_t>(kMaxHeaderBytes)) {
    refuse_safetensors(
        path, fmt::format("its header has {} bytes, the format allows {}", size, kMaxHeaderBytes));
  }
  return static_cast<int64_t>(size);
}

std::vector<SafetensorsEntry> parse_safetensors_header(const std::string& path,
                                                       std::string_view header, int64_t file_size) {
  HeaderReader reader(path);
  Json::sax_parse(header.begin(), header.end(), &reader);
  std::vector<SafetensorsEntry> entries = reader.take_entries();
  require_single_names(path, entries);
  std::ranges::sort(entries, [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  const int64_t data_begin = 8 + std::ssize(header);
  int64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    if (entry.begin != end) {
      refuse_safetensors(
          path, fmt::format("tensor {} begins at {} where {} was expected (overlap or hole)",
                            cut(entry.name), entry.begin, end));
    }
    end = entry.end;
    if (end > file_size - data_begin) {
      refuse_safetensors(
          path,
          fmt::format("tensor {} ends at byte {} but the file has {}; it is truncated",
                      cut(entry.name),
                      static_cast<uint64_t>(data_begin) + static_cast<uint64_t>(end), file_size));
    }
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  if (data_begin + end != file_size) {
    refuse_safetensors(path,
                       fmt::format("it has {} after the last tensor, which belong to no tensor",
                                   counted(file_size - data_begin - end, "byte")));
  }
  return entries;
}

}  // namespace longspan
