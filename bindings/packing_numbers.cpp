#include "bindings/packing_numbers.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <stdexcept>

#include "longspan/base/user_error.h"

namespace longspan {

Packing packing_of_numbers(at::IntArrayRef numbers) {
  std::vector<Document> documents;
  size_t next = 0;
  const auto read = [&] {
    if (next < numbers.size()) return numbers[next++];
    throw UserError(fmt::format("documents: {} numbers end inside of a document", next));
  };
  while (next < numbers.size()) {
    Document& document = documents.emplace_back(Document{read()});
    if (document.length <= 0) {
      throw UserError(
          fmt::format("documents: a length is {}, and lengths must be positive (cu_seqlens begins "
                      "with 0 and increases)",
                      document.length));
    }
    for (int64_t left = read(); left > 0; --left) {
      const int64_t begin = read();
      document.segments.push_back({begin, read()});
    }
  }
  try {
    return Packing::from_documents(documents);
  } catch (const std::logic_error& error) {
    throw UserError(fmt::format("documents: {}", error.what()));
  }
}

Packing packing_of_numbers(const at::Tensor& numbers) {
  if (numbers.dim() != 1 || numbers.scalar_type() != at::kLong || !numbers.is_cpu()) {
    throw UserError(
        fmt::format("documents: a {} tensor of {} dimensions on {}, and an int64 "
                    "tensor of one dimension on the CPU is needed",
                    c10::toString(numbers.scalar_type()), numbers.dim(), numbers.device().str()));
  }
  const at::Tensor in_order = numbers.contiguous();
  return packing_of_numbers(at::IntArrayRef(in_order.const_data_ptr<int64_t>(), in_order.numel()));
}

std::vector<int64_t> numbers_of_packing(const Packing& packing) {
  std::vector<int64_t> numbers;
  for (const Document& document : packing.documents()) {
    numbers.push_back(document.length);
    numbers.push_back(std::ssize(document.segments));
    for (const Segment& segment : document.segments) {
      numbers.push_back(segment.begin);
      numbers.push_back(segment.parent);
    }
  }
  return numbers;
}

}  // namespace longspan
