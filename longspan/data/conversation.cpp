#include "longspan/data/conversation.h"

#include <stdexcept>

namespace longspan {

std::string name_of(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kObservation:
      return "observation";
  }
  throw std::logic_error("no such role");
}

}  // namespace longspan
