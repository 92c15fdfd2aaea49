#include "longspan/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
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

/// The error message of reading this content.
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
  // Readers own their tensors: changing one leaves the file alone.
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
      complaint(with_header(R"({"x":{"dtype":"F8_E5M2","shape":[2],"data_offsets":[0,2]}})", 2)),
      "F8_E5M2, which is not supported"));
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
             "belong to no tensor"));
  CHECK_THROWS_AS(read_safetensors("/nonexistent/model.safetensors"), UserError);
  CHECK_THROWS_AS(read_safetensors("/"), UserError);
}

/// The message for a file whose header claims `said` bytes and is `text` and then blanks.
std::string complaint_of_large(const std::string& text, int64_t said) {
  const testing::TemporaryFolder folder;
  std::string content = with_header(text, 0);
  for (int byte = 0; byte < 8; ++byte) content[byte] = static_cast<char>(said >> (8 * byte));
  const std::string path = folder.write("large.safetensors", content);
  fs::resize_file(path, 8 + said);  // a hole, which takes no space
  try {
    SafetensorsFile{path};
  } catch (const UserError& error) {
    return error.what();
  }
  return "(accepted)";
}

TEST_CASE("safetensors: what is too large, too deep or there twice is not built") {
  CHECK(says(complaint_of_large("{}", 100'000'001), "the format allows 100000000"));
  CHECK(says(complaint(with_header(std::string(1'000'000, '['), 0)), "not a JSON object"));
  const std::string deep(1'000'000, '[');
  CHECK(says(complaint(with_header(R"({"x":)" + deep, 0)), "lacks dtype"));
  CHECK(says(complaint(with_header(R"({"x":{"shape":)" + deep, 0)), "not a natural number"));
  CHECK(says(complaint(with_header(R"({"x":{"more":)" + deep, 0)), "broken JSON"));
  CHECK(says(complaint(with_header(R"({"__metadata__":)" + deep, 0)), "broken JSON"));
  std::string ones;
  for (int i = 0; i < 65; ++i) ones += i == 0 ? "1" : ",1";
  CHECK(says(complaint(with_header(R"({"x":{"shape":[)" + ones + "]}}", 0)),
             "tensor x has more than 64 dims"));
  const std::string x = R"("x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  CHECK(says(complaint(with_header("{" + x + "," + x + "}", 4)), "tensor x is there twice"));
  CHECK(says(complaint(with_header(R"({"x":{"dtype":"F32","dtype":"F32"}})", 0)), "dtype twice"));
  CHECK(
      says(complaint(with_header(
               R"({"x":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]}})", 0)),
           "larger than any memory"));
  CHECK(
      says(complaint(with_header(
               R"({"x":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4)),
           "not a natural number"));
  CHECK(complaint(with_header(R"({"__metadata__":{"shape":[[1],{"dtype":2}],"dtype":"F32"},)" + x +
                                  R"(,"y":{"more":[{"a":[1.5]}],"dtype":"F32","shape":[0],)"
                                  R"("data_offsets":[4,4]}})",
                              4)) == "(accepted)");
}

TEST_CASE("safetensors: a file that changes while it is read is an error that names it") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "shrinks.safetensors";
  const at::Tensor x = at::randn({3'000'000}), y = at::randn({7});  // x takes several chunks
  write_safetensors(path, {{"x", x}, {"y", y}});
  const SafetensorsFile file(path);
  const auto entry = [&](const char* name) {
    return *std::ranges::find(file.entries(), name, &SafetensorsEntry::name);
  };
  CHECK(at::equal(file.read(entry("x")), x));
  CHECK(at::equal(file.read(entry("x"), at::kDouble), x.to(at::kDouble)));
  CHECK(at::equal(file.read(entry("x"), at::kBFloat16), x.to(at::kBFloat16)));
  at::Tensor run = at::empty({1'500'001}, at::kDouble);
  file.read_run(entry("x"), 5, 1'500'006, run);
  CHECK(at::equal(run, x.narrow(0, 5, 1'500'001).to(at::kDouble)));

  fs::resize_file(path, fs::file_size(path) / 2);
  for (const char* name : {"x", "y"}) {
    CHECK_THROWS_WITH_AS(file.read(entry(name)), doctest::Contains(path.c_str()), UserError);
    CHECK_THROWS_WITH_AS(file.read(entry(name)), doctest::Contains("was changed while it was read"),
                         UserError);
  }
  fs::remove(path);
  CHECK_THROWS_WITH_AS(file.read(entry("y")), doctest::Contains("No such file"), UserError);
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
  // A limit on file sizes makes writes fail like a full disk: some bytes fit, then none.
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
