#include "longspan/report/row_traffic.h"

#include <utility>

namespace longspan {

RowTraffic::RowTraffic(AttentionTraffic attention, ExpertTraffic experts)
    : attention_(std::move(attention)), experts_(std::move(experts)) {}

void RowTraffic::begin_row() {
  attention_.begin_row();
  experts_.begin_row();
}

void RowTraffic::end_forward(const Packing& padded) {
  attention_.end_forward(padded);
  experts_.end_forward();
}

void RowTraffic::end_backward() {
  attention_.end_backward();
  experts_.end_backward();
}

void RowTraffic::begin_reference() {
  if (!counts_references_) return;
  attention_.begin_reference();
  experts_.begin_reference();
}

void RowTraffic::end_reference(const Packing& padded) {
  if (!counts_references_) return;
  attention_.end_reference(padded);
  experts_.end_reference();
}

SentBytes RowTraffic::report(const Group& world) const {
  // One collective after the other, in the same order on all ranks.
  SentBytes sent;
  sent.attention = attention_.report(world);
  sent.experts = experts_.report(world);
  return sent;
}

std::vector<std::string> tables_of(const SentBytes& sent) {
  std::vector<std::string> tables;
  for (std::string table : {table_of(sent.attention), table_of(sent.experts)}) {
    if (!table.empty()) tables.push_back(std::move(table));
  }
  return tables;
}

void write_reports(const std::string& folder, const SentBytes& sent) {
  if (!table_of(sent.attention).empty()) write_report(folder, sent.attention);
  if (!table_of(sent.experts).empty()) write_report(folder, sent.experts);
}

}  // namespace longspan
