#include "longspan/text/compressed_file.h"

#include <fmt/format.h>

#include <memory>

#include "longspan/base/user_error.h"
#include "longspan/text/rust_call.h"

namespace longspan {

namespace {

constexpr std::string_view kGzip = ".gz", kZstd = ".zst";

class Decompressor final : public ByteFilter {
 public:
  Decompressor(int descriptor, bool is_zstd, std::string path) : path_(std::move(path)) {
    LsrDecompress* file = nullptr;
    rust_call(lsr_decompress_new, descriptor, is_zstd, &file);
    file_.reset(file);
  }

  size_t read(char* to, size_t num_bytes) override {
    size_t num_read = 0;
    try {
      rust_call(lsr_decompress_read, file_.get(), to, num_bytes, &num_read);
    } catch (const UserError& error) {
      throw UserError(
          fmt::format("{}: the compressed data is broken, or ends early: {}", path_, error.what()));
    }
    return num_read;
  }

 private:
  struct Free {
    void operator()(LsrDecompress* file) const { lsr_decompress_free(file); }
  };
  std::string path_;
  std::unique_ptr<LsrDecompress, Free> file_;
};

}  // namespace

std::string_view compression_ending(std::string_view path) {
  return path.ends_with(kGzip) ? kGzip : path.ends_with(kZstd) ? kZstd : "";
}

InputFile open_decompressed(const std::string& path, std::string_view what) {
  InputFile file(path, what);
  const std::string_view ending = compression_ending(path);
  if (ending.empty()) return file;
  file.filter_by([path, is_zstd = ending == kZstd](int descriptor) {
    return std::make_unique<Decompressor>(descriptor, is_zstd, path);
  });
  return file;
}

}  // namespace longspan
