#include "longspan/data/example_file.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>

#include "longspan/base/user_error.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

/// Returns an example with everything that one can have.
Example full_example() {
  Sample chosen{{1, 2, 3}, {-100, 2, 3}};
  chosen.columns["advantage"] = {at::arange(3, at::kFloat).mul(0.1), -1.5};
  chosen.columns["place"] = {at::arange(6, at::kLong).view({3, 2})};
  chosen.columns["weight"] = {at::ones({3}, at::kBFloat16).mul(0.3), 1};
  chosen.columns["seen"] = {at::arange(3, at::kLong).remainder(2).to(at::kBool)};
  chosen.positions_AT = at::arange(9, at::kLong).view({3, 3}).t();  // not contiguous
  chosen.pictures = {
      {.files = {"a.png"},
       .grid = {1, 4, 6},
       .num_features = 6,
       .checksum = 0xFEDCBA9876543210,
       .is_two_way = true},
      {.files = {"1.png", "2.png"},
       .is_video = true,
       .grid = {1, 2, 2},
       .num_features = 1,
       .file_checksums = {8, 0xFEDCBA9876543210}},
      {.files = {"a.mp4"}, .is_video = true, .frames = {0, 7}, .version = 3, .grid = {1, 2, 2}}};
  Sample rejected{{7}, {7}};
  Example example;
  example.documents = {chosen, rejected};
  example.desirable = false;
  example.position_restarts = {2, 3};
  return example;
}

Example short_example(int32_t token) {
  Example example;
  example.documents = {{{token, 2}, {-100, 2}}};
  return example;
}

void check_equal(const at::Tensor& left, const at::Tensor& right) {
  REQUIRE(left.defined() == right.defined());
  if (!left.defined()) return;
  CHECK((left.scalar_type() == right.scalar_type()));
  CHECK(at::equal(left, right));
}

void check_equal(const Example& left, const Example& right) {
  CHECK(left.desirable == right.desirable);
  CHECK(left.position_restarts == right.position_restarts);
  REQUIRE(left.documents.size() == right.documents.size());
  for (size_t i = 0; i < left.documents.size(); ++i) {
    const Sample &a = left.documents[i], &b = right.documents[i];
    CHECK(a.input_ids == b.input_ids);
    CHECK(a.labels == b.labels);
    check_equal(a.positions_AT, b.positions_AT);
    CHECK((a.pictures == b.pictures));
    REQUIRE(a.columns.size() == b.columns.size());
    for (const auto& [name, column] : a.columns) {
      REQUIRE(b.columns.contains(name));
      CHECK(column.padding == b.columns.at(name).padding);
      check_equal(column.values, b.columns.at(name).values);
    }
  }
}

/// Returns the bytes of a file with these examples.
std::string bytes_of(const std::vector<Example>& examples, const std::string& folder) {
  ExampleFileWriter writer(folder);
  for (const Example& example : examples) writer.add(example);
  writer.finish("note");
  std::ifstream file(writer.path(), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

ExampleFile file_of(const testing::TemporaryFolder& folder, const std::string& bytes) {
  return ExampleFile(InputFile(folder.write("file", bytes), "encoded data set"));
}

}  // namespace

TEST_CASE("example file: everything that an example has comes back") {
  const testing::TemporaryFolder folder;
  const std::vector<Example> all = {full_example(), short_example(5), Example(), full_example()};
  ExampleFileWriter writer(folder.path);
  for (const Example& example : all) writer.add(example);
  writer.finish("a note");
  const auto file = std::make_shared<const ExampleFile>(writer.open());
  CHECK(file->note() == "a note");
  const ExamplesInFile train(file, 0, 3), eval(file, 3, 1);
  REQUIRE(train.size() == 3);
  for (const int64_t place : {2, 0, 1}) {
    check_equal(*train.example(place), all[place]);
    CHECK(train.example(place)->number == place);
  }
  check_equal(*eval.example(0), all[3]);
  CHECK(eval.example(0)->number == 3);
  CHECK_THROWS_AS(train.example(3), std::out_of_range);
  CHECK_THROWS_AS(eval.example(-1), std::out_of_range);
}

TEST_CASE("example file: it has no name, and lives as long as one of its readers") {
  const testing::TemporaryFolder folder;
  std::unique_ptr<ExampleFile> file;
  {
    ExampleFileWriter writer(folder / "new folder");
    InputFile opened_before(writer.path(), "encoded data set");
    // More than the writer holds back.
    for (int32_t i = 0; i < 40000; ++i) writer.add(short_example(i));
    writer.finish("");
    file = std::make_unique<ExampleFile>(std::move(opened_before));
  }
  CHECK(std::filesystem::is_empty(folder / "new folder"));
  REQUIRE(file->num_examples() == 40000);
  for (const int64_t place : {39999, 0, 20000}) {
    check_equal(file->example(place), short_example(static_cast<int32_t>(place)));
  }
}

TEST_CASE("example file: no examples") {
  const testing::TemporaryFolder folder;
  ExampleFileWriter writer(folder.path);
  writer.finish("nothing");
  const auto file = std::make_shared<const ExampleFile>(writer.open());
  CHECK(file->num_examples() == 0);
  CHECK(file->note() == "nothing");
  CHECK(ExamplesInFile(file, 0, 0).empty());
}

TEST_CASE("example file: a torn one is refused") {
  const testing::TemporaryFolder folder;
  const std::string whole = bytes_of({short_example(5), full_example()}, folder.path);
  CHECK(file_of(folder, whole).num_examples() == 2);
  for (const size_t size :
       {size_t{0}, size_t{20}, size_t{32}, whole.size() / 2, whole.size() - 1}) {
    CHECK_THROWS_AS(file_of(folder, whole.substr(0, size)), UserError);
  }
  CHECK_THROWS_AS(file_of(folder, whole + "x"), UserError);
  // Whatever byte has changed, what is read is what was written, or an error.
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string torn = whole;
    torn[i] ^= 0x40;
    bool refused = false;
    try {
      const ExampleFile file = file_of(folder, torn);
      file.example(0);
      file.example(1);
      file.note();
    } catch (const UserError&) {
      refused = true;
    }
    REQUIRE_MESSAGE(refused, "byte ", i);
  }
}

TEST_CASE("example file: one that was not finished is refused") {
  const testing::TemporaryFolder folder;
  ExampleFileWriter writer(folder.path);
  CHECK_THROWS_WITH_AS(ExampleFile(writer.open()), doctest::Contains("it is incomplete"),
                       UserError);
  for (int32_t i = 0; i < 40000; ++i) writer.add(short_example(i));
  CHECK_THROWS_WITH_AS(ExampleFile(writer.open()), doctest::Contains("its header is not whole"),
                       UserError);
}

TEST_CASE("example file: a folder that takes no file") {
  const testing::TemporaryFolder folder;
  const std::string file = folder.write("file", "");
  CHECK_THROWS_WITH_AS(ExampleFileWriter(file + "/folder"), doctest::Contains("cache_dir"),
                       UserError);
}

}  // namespace longspan
