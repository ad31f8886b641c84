// Members by their ids, for tests of what looks at all of them.
#pragma once

#include <map>
#include <string>
#include <vector>

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

inline Member Gone(Member member, v1::Member::State how = v1::Member::LOST) {
  member.record.set_state(how);
  return member;
}

inline Members Table(const std::vector<Member>& list) {
  Members members;
  for (const Member& member : list) members[member.record.worker_id()] = member;
  return members;
}

}  // namespace causeway::server
