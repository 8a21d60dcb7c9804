"""How the members of a weight group find each other, after each has shown a nonce of the current epoch.

member ── client ══ TCP: nonce, then the store's protocol ══▶ server ──▶ torch's TCPStore (loopback)
   └───── barrier: wait until all members have come, and until all have formed the group
"""
