#include "longspan/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "longspan/checkpoint/atomic_file.h"
#include "longspan/config/user_error.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string with_header(const std::string& header, size_t num_data_bytes) {
  std::string content(8, '\0');
  for (int byte = 0; byte < 8; ++byte) {
    content[byte] = static_cast<char>(header.size() >> (8 * byte));
  }
  return content + header + std::string(num_data_bytes, 'x');
}

/// The message with which reading this content fails.
std::string complaint(const std::string& content) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "broken.safetensors";
  std::ofstream(path, std::ios::binary) << content;
  try {
    read_safetensors(path);
  } catch (const UserError& error) {
    CHECK(std::string(error.what()).find(path) != std::string::npos);
    return error.what();
  }
  return "(accepted)";
}

bool says(const std::string& message, const char* part) {
  INFO(message);
  return message.find(part) != std::string::npos;
}

TEST_CASE("safetensors: what is written is read back, bit for bit") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  const std::vector<NamedTensor> tensors = {{"b", at::randn({3, 5})},
                                            {"a", at::randn({7}).to(at::kBFloat16)},
                                            {"half", at::randn({2, 1, 2}).to(at::kHalf)},
                                            {"double", at::randn({4}, at::kDouble)},
                                            {"long", at::arange(3)},
                                            {"empty", at::empty({0, 4})},
                                            {"scalar", at::scalar_tensor(2.5)},
                                            {"transposed", at::randn({3, 4}).t()}};
  write_safetensors(path, tensors);
  const auto loaded = read_safetensors(path);
  REQUIRE(loaded.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    bool found = false;
    for (const auto& other : loaded) {
      if (other.name != name) continue;
      found = true;
      CHECK((other.tensor.scalar_type() == tensor.scalar_type()));
      CHECK(at::equal(other.tensor, tensor));
    }
    CHECK(found);
  }
  CHECK(folder.num_files() == 1);
  // The mapping is copy-on-write: changing a tensor leaves the file alone.
  const std::string before = read(path);
  loaded.front().tensor.zero_();
  CHECK(read(path) == before);
}

TEST_CASE("safetensors: tensors whose data is not aligned are read too") {
  const std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  REQUIRE(header.size() % 4 != 0);
  const testing::TemporaryFolder folder;
  const std::string path = folder / "unaligned.safetensors";
  std::string content = with_header(header, 0);
  const float numbers[] = {1.5F, -2.0F};
  content.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
  std::ofstream(path, std::ios::binary) << content;
  CHECK(at::equal(read_safetensors(path).at(0).tensor, at::tensor({1.5F, -2.0F})));
}

TEST_CASE("safetensors: every corrupt form is refused with the path") {
  CHECK(says(complaint(""), "0 bytes"));
  CHECK(says(complaint("abc"), "3 bytes"));
  CHECK(says(complaint(std::string(8, '\xff') + "{}"), "header should have"));
  CHECK(says(complaint(std::string("\x40\0\0\0\0\0\0\0", 8) + "{}"), "header should have 64"));
  CHECK(says(complaint(with_header(R"({"x":)", 0)), "broken JSON"));
  CHECK(says(complaint(with_header("[1]", 0)), "not a JSON object"));
  CHECK(says(complaint(with_header(R"({"x":3})", 0)), "lacks dtype"));
  CHECK(says(complaint(with_header(R"({"x":{"dtype":"F32","shape":[2]}})", 8)), "lacks dtype"));
  CHECK(says(
      complaint(with_header(R"({"x":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})", 2)),
      "F8_E4M3, which is not supported"));
  CHECK(
      says(complaint(with_header(R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8)),
           "not a natural number"));
  CHECK(
      says(complaint(with_header(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,12]}})", 12)),
           "takes 8 bytes"));
  CHECK(
      says(complaint(with_header(
               R"({"x":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})", 8)),
           "larger than any memory"));
  CHECK(says(complaint(with_header(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                   R"("y":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                                   12)),
             "overlap or hole"));
  CHECK(says(complaint(with_header(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                   R"("y":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})",
                                   20)),
             "overlap or hole"));
  CHECK(says(complaint(with_header(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 5)),
             "truncated"));
  CHECK(says(complaint(with_header(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9)),
             "belong to nobody"));
  CHECK_THROWS_AS(read_safetensors("/nonexistent/model.safetensors"), UserError);
  CHECK_THROWS_AS(read_safetensors("/"), UserError);
}

TEST_CASE("safetensors: any truncation of a good file is refused") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "good.safetensors";
  write_safetensors(path, {{"x", at::randn({5})}, {"y", at::randn({3})}});
  const std::string content = read(path);
  for (size_t size = 0; size < content.size(); size += 3) {
    CHECK(complaint(content.substr(0, size)) != "(accepted)");
  }
}

TEST_CASE("a write that fails leaves the old file and nothing else") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "model.safetensors";
  write_file_atomically(path, "the old file");
  // A limit on file sizes fails writes as a full disk does: some bytes fit, then none.
  struct rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 100'000;
  ::setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    write_safetensors(path, {{"x", at::zeros({1'000'000})}});
  } catch (const UserError& error) {
    message = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(says(message, path.c_str()));
  CHECK(says(message, "Free some space"));
  CHECK(read(path) == "the old file");
  CHECK(folder.num_files() == 1);
}

TEST_CASE("a folder that is not there is named") {
  CHECK_THROWS_WITH_AS(write_file_atomically("/nonexistent/folder/file", "x"),
                       doctest::Contains("/nonexistent/folder/file"), UserError);
}

}  // namespace
}  // namespace longspan
