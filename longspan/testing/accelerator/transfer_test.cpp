// Small transfers between host and device: the host waits only when it reads one.
#include "longspan/memory/transfer.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "longspan/report/averages.h"
#include "longspan/rows/batch.h"
#include "longspan/testing/accelerator/accelerator.h"
#include "longspan/testing/accelerator/streams_for_tests.h"

namespace longspan::testing::accelerator {
namespace {

int64_t waits() { return Machine::get().counters().host_syncs; }

TEST_CASE("accelerator: a tensor is sent to a device without a wait") {
  install();
  Machine::get().restart_counters();
  const at::Tensor x = at::arange(70, at::kLong).view({7, 10}).t();
  const at::Tensor there = sent_to(x, device());
  const at::Tensor empty = sent_to(at::zeros({0, 3}), device());
  const at::Tensor doubled = there * 2;
  CHECK(waits() == 0);
  CHECK(doubled.cpu().equal(x * 2));
  CHECK(empty.sizes() == at::IntArrayRef({0, 3}));
  CHECK(sent_to(there, device()).is_same(there));
  CHECK(sent_to(x, at::kCPU).is_same(x));
}

TEST_CASE("accelerator: several tensors are sent in one copy") {
  install();
  const std::vector<at::Tensor> parts{at::arange(5, at::kLong),
                                      at::Tensor(),
                                      at::zeros({0}),
                                      at::full({3}, 0.5),
                                      at::ones({2, 9}, at::kBFloat16).t(),
                                      at::ones({1}, at::kBool)};
  Machine::get().restart_counters();
  const std::vector<at::Tensor> there = sent_to(parts, device());
  CHECK(waits() == 0);
  CHECK(Machine::get().counters().launches_of.at("copy to the device") == 1);
  REQUIRE(there.size() == parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    CAPTURE(i);
    REQUIRE(there[i].defined() == parts[i].defined());
    if (!parts[i].defined()) continue;
    CHECK(there[i].device() == device());
    CHECK(there[i].dtype() == parts[i].dtype());
    CHECK(there[i].cpu().equal(parts[i]));
  }
}

TEST_CASE("accelerator: numbers on their way to the host are waited for once, and only if needed") {
  install();
  const at::Tensor x = at::arange(6, on_device(at::kDouble));
  Machine::get().restart_counters();
  const ToHost first(x + 1), second(x.narrow(0, 2, 1) * 3);
  CHECK(waits() == 0);
  CHECK(second.here().item<double>() == 6);
  CHECK(waits() == 1);
  CHECK(first.here().equal(at::arange(6, at::kDouble) + 1));  // it has arrived before the second
  CHECK(first.here().size(0) == 6);
  CHECK(waits() == 1);
}

TEST_CASE("accelerator: averages that a device computes are the host's, in their order") {
  install();
  Averages there, here;
  Machine::get().restart_counters();
  for (const double x : {1e16, 1.0, -1e16, 0.25}) {
    const at::Tensor sum = at::full({}, x, at::kDouble);
    there.add({{"a", sent_to(sum, device())}, {"b", sent_to(sum, device()) * 2}}, 3);
    here.add("a", x, 3);
    here.add("b", 2 * x, 3);
  }
  CHECK(waits() == 0);
  CHECK_FALSE(there.empty());
  CHECK(there.sums() == here.sums());
  there.add({{"a", at::ones({}, on_device())}}, 1);
  there.clear();
  CHECK(there.empty());
}

TEST_CASE("accelerator: a row that was sent knows where its labels are") {
  install();
  const std::vector<int32_t> ids{3, 1, 4, 1, 5}, labels{-100, -100, 4, -100, 5};
  const Sample sample{.input_ids = ids,
                      .labels = labels,
                      .columns = {{"weight", {at::arange(5).to(at::kFloat), 0.5}}}};
  const Batch row = collate({&sample, &sample});
  Machine::get().restart_counters();
  const Batch there = longspan::on_device(row, device());
  const at::Tensor rows_L = label_rows(there);
  CHECK(waits() == 0);
  CHECK(rows_L.device() == device());
  CHECK(rows_L.cpu().equal(label_rows(row)));
  CHECK(there.labels_T.cpu().equal(row.labels_T));
  CHECK(there.tokens_T.cpu().equal(row.tokens_T));
  CHECK(there.positions_T.cpu().equal(row.positions_T));
  CHECK(there.documents_T.cpu().equal(row.documents_T));
  CHECK(there.columns.at("weight").values.cpu().equal(row.columns.at("weight").values));
  CHECK(there.columns.at("weight").padding == 0.5);
}

}  // namespace
}  // namespace longspan::testing::accelerator
