#include "longspan/report/memory_report.h"

#include <doctest/doctest.h>

namespace longspan {
namespace {

TEST_CASE("memory report: the longest row, of documents that are in it at once") {
  const auto document = [](size_t tokens) {
    return Sample{.input_ids = std::vector<int32_t>(tokens, 1),
                  .labels = std::vector<int32_t>(tokens, 1)};
  };
  std::vector<Example> examples(3);
  examples[0].documents = {document(10), document(40)};
  examples[1].documents = {document(20), document(7)};
  examples[2].documents = {document(30), document(6)};
  const ExamplesInMemory set(examples);
  const RowLengths pairs = row_lengths(set, 2, RowKind::kPair);
  CHECK(pairs.num_tokens == 50 + 36);
  CHECK(pairs.num_labels == 9 + 39 + 29 + 5);
  CHECK(pairs.documents == std::vector<Document>{{10}, {40}, {30}, {6}});
  // An answer is in one row, and its KL estimate's document in another.
  const RowLengths answers = row_lengths(set, 2, RowKind::kUnpairedPreference);
  CHECK(answers.num_tokens == 30 + 20);
  CHECK(answers.num_labels == 29 + 19);
  CHECK(answers.documents == std::vector<Document>{{30}, {20}});
  CHECK(row_lengths(set, 1, RowKind::kUnpairedPreference).documents == std::vector<Document>{{40}});
}

TEST_CASE("memory report: a warning where the ranks of a machine need more than it has") {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const MachineMemory machine{8 * kGiB, "memory and swap space"};
  CHECK(warning_of_memory(4 * kGiB, 2, machine).empty());
  const std::string warning = warning_of_memory(4 * kGiB, 3, machine);
  CHECK_MESSAGE(warning.find("3 ranks of this run need some 12.0 GiB, and this machine has 8.0 GiB "
                             "(memory and swap space)") != std::string::npos,
                warning);
  CHECK_FALSE(warning_of_memory(INT64_MAX, 2, machine).empty());
}

}  // namespace
}  // namespace longspan
