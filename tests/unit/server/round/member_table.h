// Members by their ids, for tests of what looks at all of them.
#pragma once

#include <initializer_list>
#include <map>
#include <string>

#include "server/round/membership.h"

namespace causeway::server {

using Members = std::map<std::string, Member>;

inline Member Active(const std::string& id, int64_t step, int64_t from_step = 0) {
  Member member;
  member.record.set_worker_id(id);
  member.record.set_state(v1::Member::ACTIVE);
  member.record.set_active_from_step(from_step);
  member.record.set_step(step);
  return member;
}

inline Members Table(std::initializer_list<Member> list) {
  Members members;
  for (const Member& member : list) members[member.record.worker_id()] = member;
  return members;
}

}  // namespace causeway::server
